// The main function of both test programs. Exit codes: 0 when every test passed, 1 when one failed, 77 when nothing
// failed and something was skipped, which ctest then reports as skipped and not as passed.
#define CATCH_CONFIG_RUNNER
#include <cstdio>
#include <string>

#include "common/device/device.hpp"
#include "tests/catch.hpp"
#include "tests/support/skip.hpp"

namespace {
constexpr int kPassed = 0, kFailed = 1, kSkipped = 77;
}

int main(int argc, char** argv) {
  Catch::Session session;
#if CATCH_VERSION_MAJOR == 2
  session.configData().warnings = Catch::WarnAbout::NoTests;  // version 3 does so by itself
#endif
  if (session.applyCommandLine(argc, argv) != 0) return kFailed;
#if defined(FLASH_TESTS_NEED_GPU)
  // Listing the tests needs no GPU; running any of them does.
  std::string why;
  if (!flash::gpu_available(&why)) {
    std::printf("skipped: %s\n", why.c_str());
    return kSkipped;
  }
#endif
  if (session.run() != 0) return kFailed;
  return flash::test::skips().empty() ? kPassed : kSkipped;
}
