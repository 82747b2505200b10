# Makes the changed kernel of one mutant (mutant.hpp has the file's format):
#   cmake -DMUTANT=NN_name.mutant -DSOURCE=<project> -DOUTPUT=<folder>/NN_name -P ApplyMutant.cmake
# writes OUTPUT.cuh, the kernel with the bug in a namespace of its own, and OUTPUT.cpp, which hands it to the test. Where
# the bug is in another file than the kernel's, OUTPUT.cuh holds copies of all that the kernel includes, in that namespace.
# Where the old text is not there exactly once, nothing is built and the mutant's test fails with the reason: the
# kernels are there to be rewritten, and the rest of the build must go on.

cmake_policy(VERSION 3.25)

file(READ ${MUTANT} text)
get_filename_component(name ${MUTANT} NAME_WE)
string(MAKE_C_IDENTIFIER "mutant_${name}" identifier)
set(problems "")

# -- The header lines
string(FIND "${text}" "--- old\n" first_pair)
if(first_pair EQUAL -1)
  message(FATAL_ERROR "${MUTANT}: no line '--- old'")
endif()
string(SUBSTRING "${text}" 0 ${first_pair} header)
string(SUBSTRING "${text}" ${first_pair} -1 pairs)
foreach(key what chapter variant expect problem)
  if(NOT header MATCHES "(^|\n)${key}: *([^\n]*)\n")
    message(FATAL_ERROR "${MUTANT}: no line '${key}: ...'")
  endif()
  set(${key} "${CMAKE_MATCH_2}")
endforeach()
set(kernel_file chapters/${chapter}/kernel.cuh)
set(file ${kernel_file})
if(header MATCHES "(^|\n)file: *([^\n]*)\n")
  set(file "${CMAKE_MATCH_2}")
endif()
if(NOT EXISTS ${SOURCE}/${file})
  message(FATAL_ERROR "${MUTANT}: there is no ${file}")
endif()
file(READ ${SOURCE}/${file} code)

# -- Replaces OLD, which must stand in the file exactly once.
function(replace_once old new)
  string(FIND "${code}" "${old}" first)
  string(FIND "${code}" "${old}" last REVERSE)
  if(first EQUAL -1)
    set(problems "${problems}its old text is not in ${file}: ${old}" PARENT_SCOPE)
  elseif(NOT first EQUAL last)
    set(problems "${problems}its old text stands more than once in ${file}: ${old}" PARENT_SCOPE)
  else()
    string(LENGTH "${old}" length)
    string(SUBSTRING "${code}" 0 ${first} before)
    math(EXPR end "${first} + ${length}")
    string(SUBSTRING "${code}" ${end} -1 after)
    set(code "${before}${new}${after}" PARENT_SCOPE)
  endif()
endfunction()

# A text ends before the line end in front of the next "---" line, so that parts of lines can be replaced too.
while(NOT pairs STREQUAL "")
  string(SUBSTRING "${pairs}" 8 -1 pairs) # behind "--- old\n"
  string(FIND "${pairs}" "\n--- new\n" end)
  if(end LESS 1)
    message(FATAL_ERROR "${MUTANT}: no text between '--- old' and '--- new'")
  endif()
  string(SUBSTRING "${pairs}" 0 ${end} old)
  math(EXPR end "${end} + 8")
  string(SUBSTRING "${pairs}" ${end} -1 pairs) # the line end of "--- new" and what follows
  string(FIND "${pairs}" "\n--- old\n" end)
  string(SUBSTRING "${pairs}" 0 ${end} new)
  string(REGEX REPLACE "^\n" "" new "${new}")
  if(end EQUAL -1)
    string(REGEX REPLACE "\n$" "" new "${new}")
    set(pairs "")
  else()
    math(EXPR end "${end} + 1")
    string(SUBSTRING "${pairs}" ${end} -1 pairs)
  endif()
  replace_once("${old}" "${new}")
endwhile()

# -- A namespace of its own: two kernels of one name in one program would be one kernel.
string(REGEX REPLACE "^[0-9]+_" "" namespace ${chapter})
if(file STREQUAL kernel_file)
  # What the chapter's other files declare stays in the chapter's.
  replace_once("namespace flash::MACHINE::${namespace} {" "namespace flash::MACHINE::${namespace} {}
namespace flash::MACHINE::${identifier} {
using namespace flash::MACHINE::${namespace};")
  set(kernel "${code}")
  set(entry ${identifier}::launch)
else()
  # Every include of the kernel's own room, of the kernel parts and of the file becomes the text of that file, once. The machine is
  # everybody's: its header stays as it is, and is written with angles so that it is not found again.
  file(READ ${SOURCE}/${kernel_file} kernel)
  set(copied "")
  while(kernel MATCHES "#include \"((chapters|common/kernel)/[^\"]*|${file})\"")
    set(include "${CMAKE_MATCH_0}")
    set(path "${CMAKE_MATCH_1}")
    if(path STREQUAL "common/kernel/kernel.hpp")
      set(replacement "#include <${path}>")
    elseif(path IN_LIST copied)
      set(replacement "")
    elseif(path STREQUAL file)
      set(replacement "${code}")
    else()
      file(READ ${SOURCE}/${path} replacement)
    endif()
    list(APPEND copied ${path})
    string(FIND "${kernel}" "${include}" begin)
    string(LENGTH "${include}" length)
    math(EXPR end "${begin} + ${length}")
    string(SUBSTRING "${kernel}" 0 ${begin} before)
    string(SUBSTRING "${kernel}" ${end} -1 after)
    set(kernel "${before}${replacement}${after}")
  endwhile()
  if(NOT file IN_LIST copied)
    set(problems "${problems}${kernel_file} does not include ${file}")
  endif()
  string(REPLACE "#pragma once" "" kernel "${kernel}")
  string(REGEX REPLACE "namespace flash(::MACHINE)?( \\{|::)" "namespace flash::MACHINE::${identifier}\\2" kernel
                       "${kernel}")
  # The parts are now within the machine's namespace, where what they overload of its functions would hide those.
  string(CONCAT kernel "#include <common/kernel/kernel.hpp> // names MACHINE\n"
    "namespace flash::MACHINE::${identifier} {\nusing MACHINE::uniform;\n}\n${kernel}")
  set(entry ${identifier}::${namespace}::launch)
endif()

# -- Compiled for the head dimension of its problem alone: the launches of others are most of the compile time.
set(head_dim 64)
if(problem MATCHES "head-dim ([0-9]+)")
  set(head_dim ${CMAKE_MATCH_1})
endif()
foreach(other 64 128 256)
  if(NOT other EQUAL head_dim AND kernel MATCHES "launch_[a-z_]*<Element, ${head_dim}[,>]")
    string(REGEX REPLACE "\n +((if \\([^\n]*\\) )?return )?launch_[a-z_]*<Element, (Config<)?${other}[,>][^\n]*" ""
                         kernel "${kernel}")
  endif()
endforeach()

set(launch "nullptr")
set(code "// Generated from tests/mutants/${name}.mutant by tests/mutants/ApplyMutant.cmake.\n")
if(problems STREQUAL "")
  file(WRITE ${OUTPUT}.cuh "${kernel}")
  string(APPEND code "#include \"${OUTPUT}.cuh\"\n")
  string(CONCAT launch "[](const flash::AttentionCall& call, const flash::LaunchOptions& options, flash::Device& device) {\n"
    "      flash::sim::${entry}<flash::sim::half>(call, options, static_cast<flash::sim::Machine&>(device));\n"
    "    }")
else()
  message(WARNING "mutant ${name}: ${problems}")
endif()
string(APPEND code "#include \"tests/mutants/mutant.hpp\"\n\n"
  "[[maybe_unused]] static const bool ${identifier}_added = flash::test::add_mutant(\n"
  "    {\"${name}\", R\"~(${what})~\", \"${chapter}\", \"${variant}\", \"${expect}\", \"${problem}\",\n"
  "     R\"~(${problems})~\",\n     ${launch}});\n")
file(WRITE ${OUTPUT}.cpp "${code}")
