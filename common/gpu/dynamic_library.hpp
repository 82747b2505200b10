// Libraries that are loaded when they are first needed, so that one program runs with and without them.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <initializer_list>
#include <string>
#include <vector>

namespace flash {

/// Folders of the CUDA toolkit that hold shared libraries and need not be known to the system's loader.
inline std::vector<std::string> toolkit_library_folders() {
  std::vector<std::string> folders;
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    const char* root = std::getenv(variable);
    if (root == nullptr || *root == '\0') continue;
    folders.push_back(std::string(root) + "/lib64/");
    folders.push_back(std::string(root) + "/extras/CUPTI/lib64/");
  }
  folders.push_back("/usr/local/cuda/lib64/");
  folders.push_back("/usr/local/cuda/extras/CUPTI/lib64/");
  return folders;
}

/// Loads the first library of `names` that can be loaded: each name as the system's loader finds it (LD_LIBRARY_PATH
/// included), then each in the toolkit's folders. Before a library from such a folder, its `companions` are loaded from
/// the same place: libraries that it asks for by name alone. Never unloaded: CUDA libraries leave threads and handlers
/// behind. Returns null, and one line in `why_not`, if there is none.
inline void* load_library(std::initializer_list<const char*> names, std::initializer_list<const char*> companions,
                          std::string* why_not) {
  std::string tried, first_error;
  const auto attempt = [&](const std::string& file) {
    void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    const char* error = library ? nullptr : dlerror();
    if (error && first_error.empty()) first_error = error;
    return library;
  };
  for (const char* name : names) {
    tried += (tried.empty() ? "" : ", ") + std::string(name);
    if (void* library = attempt(name)) return library;
  }
  for (const std::string& folder : toolkit_library_folders()) {
    for (const char* companion : companions) dlopen((folder + companion).c_str(), RTLD_NOW | RTLD_GLOBAL);
    for (const char* name : names) {
      if (void* library = attempt(folder + name)) return library;
    }
  }
  if (why_not) {
    *why_not = "cannot load " + tried +
               " (searched the system's folders, LD_LIBRARY_PATH, $CUDA_HOME and /usr/local/cuda; " + first_error + ")";
  }
  return nullptr;
}

}  // namespace flash
