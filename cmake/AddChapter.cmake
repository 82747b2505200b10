# A chapter is a folder chapters/NN_name with kernel.cuh and traffic.hpp. Its kernel is compiled once for each machine
# from the same file, through a generated file of a few lines; main, the comparison and the library link the results.

set(FLASH_CHAPTERS "" CACHE INTERNAL "")

# add_chapter(FOLDER): makes the object libraries chapter_<FOLDER>_sim and, with CUDA, chapter_<FOLDER>_gpu.
function(add_chapter folder)
  string(REGEX REPLACE "^[0-9]+_" "" CHAPTER_NAMESPACE ${folder})
  set(CHAPTER ${folder})
  set(generated ${CMAKE_BINARY_DIR}/generated)

  set(MACHINE_NAMESPACE sim)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/chapter_entry.in ${generated}/${folder}_sim.cpp @ONLY)
  add_library(chapter_${folder}_sim OBJECT ${generated}/${folder}_sim.cpp)
  target_link_libraries(chapter_${folder}_sim PUBLIC flash_common)
  target_compile_options(chapter_${folder}_sim PRIVATE -Wno-unknown-pragmas)

  if(FLASH_CUDA)
    set(MACHINE_NAMESPACE gpu)
    configure_file(${PROJECT_SOURCE_DIR}/cmake/chapter_entry.in ${generated}/${folder}_gpu.cu @ONLY)
    add_library(chapter_${folder}_gpu OBJECT ${generated}/${folder}_gpu.cu)
    target_link_libraries(chapter_${folder}_gpu PUBLIC flash_common)
    # A spilled register, or a wgmma that ptxas serialises, costs more than what the chapter shows: on Hopper, for which
    # the kernels are written, it is an error; of the second ptxas only informs. For others it spills here and there (for
    # 75 and 80 within its own shuffle helper in chapter 02), and nvcc passes the option to all architectures of a list.
    if("${CMAKE_CUDA_ARCHITECTURES}" MATCHES "^90a(-real|-virtual)?$")
      target_compile_options(chapter_${folder}_gpu PRIVATE "SHELL:-Xptxas -warn-spills,-Werror")
      set_target_properties(chapter_${folder}_gpu PROPERTIES CUDA_COMPILER_LAUNCHER
                                                             ${PROJECT_SOURCE_DIR}/cmake/strict_ptxas.sh)
    endif()
  endif()
  set(FLASH_CHAPTERS ${FLASH_CHAPTERS} ${folder} CACHE INTERNAL "")
endfunction()

# link_chapters(TARGET FOLDER...): links these chapters and the generated list of them into TARGET.
function(link_chapters target)
  set(CHAPTER_DECLARATIONS "")
  set(CHAPTER_ENTRIES "")
  foreach(folder ${ARGN})
    string(REGEX REPLACE "^[0-9]+_" "" namespace ${folder})
    set(gpu nullptr)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:chapter_${folder}_sim>)
    if(FLASH_CUDA)
      target_sources(${target} PRIVATE $<TARGET_OBJECTS:chapter_${folder}_gpu>)
      set(gpu launch_${folder}_gpu)
      string(APPEND CHAPTER_DECLARATIONS
             "void launch_${folder}_gpu(const AttentionCall&, const LaunchOptions&, Device&);\n")
    endif()
    string(APPEND CHAPTER_DECLARATIONS
           "void launch_${folder}_sim(const AttentionCall&, const LaunchOptions&, Device&);\n")
    string(APPEND CHAPTER_ENTRIES
           "      {\"${folder}\", ${namespace}::info(), launch_${folder}_sim, ${gpu}},\n")
    string(APPEND CHAPTER_INCLUDES "#include \"chapters/${folder}/traffic.hpp\"\n")
  endforeach()
  set(list ${CMAKE_BINARY_DIR}/generated/${target}_chapters.cpp)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/chapter_list.in ${list} @ONLY)
  target_sources(${target} PRIVATE ${list})
  target_link_libraries(${target} PRIVATE flash_common)
endfunction()
