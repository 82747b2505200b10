// Inline assembly for instructions that not every GPU has.
#pragma once

/// asm volatile(...) from compute capability 8.0 on. For a lower one the kernel compiles to a trap: its chapter says
/// what it needs (ChapterInfo::needs), and no program launches it there.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define FLASH_ASM_80(...) __trap()
#else
#define FLASH_ASM_80(...) asm volatile(__VA_ARGS__)
#endif
