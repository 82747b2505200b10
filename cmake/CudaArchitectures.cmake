# The architectures that CUDA code is built for, where the user has not chosen any: those of the GPUs in this machine, and
# 90a (Hopper with its own instructions, for which the kernels are written) where there is none.

# gpu_capabilities(RESULT): the compute capabilities of the GPUs that nvidia-smi shows, as "7.5;9.0", each once and
# sorted; empty where there is none.
function(gpu_capabilities result)
  set(found "")
  find_program(FLASH_NVIDIA_SMI nvidia-smi)
  mark_as_advanced(FLASH_NVIDIA_SMI)
  if(FLASH_NVIDIA_SMI)
    execute_process(COMMAND ${FLASH_NVIDIA_SMI} --query-gpu=compute_cap --format=csv,noheader
                    OUTPUT_VARIABLE output ERROR_QUIET RESULT_VARIABLE code TIMEOUT 30)
    if(code EQUAL 0)
      string(REGEX MATCHALL "[0-9]+\\.[0-9]+" found "${output}")
      list(REMOVE_DUPLICATES found)
      list(SORT found COMPARE NATURAL)
    endif()
  endif()
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

# nvcc_architectures(RESULT COMPILER): what this nvcc can compile for, as "75;80;86".
function(nvcc_architectures result compiler)
  execute_process(COMMAND ${compiler} --list-gpu-arch OUTPUT_VARIABLE output ERROR_QUIET)
  string(REGEX MATCHALL "[0-9]+" found "${output}")
  list(SORT found COMPARE NATURAL)
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

# default_architectures(RESULT CAPABILITIES KNOWN): the architectures for GPUs of these compute capabilities, with an nvcc
# that knows KNOWN. A GPU that is newer than nvcc gets the newest that it knows, which the driver compiles on. The kernels
# need 7.5 at least.
function(default_architectures result capabilities known)
  set(architectures "")
  foreach(capability ${capabilities})
    if(capability VERSION_LESS 7.5)
      continue()
    endif()
    string(REPLACE "." "" wanted ${capability})
    set(taken "")
    foreach(architecture ${known})
      if(NOT architecture GREATER wanted)
        set(taken ${architecture})
      endif()
    endforeach()
    if(taken STREQUAL "90" AND wanted STREQUAL "90")
      set(taken 90a)
    endif()
    list(APPEND architectures ${taken})
  endforeach()
  list(REMOVE_DUPLICATES architectures)
  if(NOT architectures)
    set(architectures 90a)
  endif()
  set(${result} "${architectures}" PARENT_SCOPE)
endfunction()

# As a script, for the tests: cmake "-DCAPABILITIES=7.5;9.0" "-DKNOWN=75;80;90" -P CudaArchitectures.cmake
if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  if(NOT DEFINED CAPABILITIES)
    gpu_capabilities(CAPABILITIES)
  endif()
  default_architectures(architectures "${CAPABILITIES}" "${KNOWN}")
  message(STATUS "${architectures}")
endif()
