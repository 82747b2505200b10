// Inline assembly for instructions that not every GPU has. Where a GPU lacks them the kernel compiles to a trap: its
// chapter says what it needs (ChapterInfo::needs), and no program launches it there.
#pragma once

/// asm volatile(...) from compute capability 8.0 on.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define FLASH_ASM_80(...) __trap()
#else
#define FLASH_ASM_80(...) asm volatile(__VA_ARGS__)
#endif

/// From compute capability 9.0 on: mbarriers that count bytes, the copy engine, stmatrix.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define FLASH_ASM_90(...) __trap()
#else
#define FLASH_ASM_90(...) asm volatile(__VA_ARGS__)
#endif

/// Of compute capability 9.0 alone, in code for sm_90a: wgmma, setmaxnreg.
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define FLASH_ASM_90A(...) __trap()
#else
#define FLASH_ASM_90A(...) asm volatile(__VA_ARGS__)
#endif
