/* The chapters as a shared library with a plain C interface (libflash_chapters.so), so that other programs can call
 * and time them: docs/peers.py loads it into PyTorch's process. */
#ifndef FLASH_CHAPTERS_H
#define FLASH_CHAPTERS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum flash_status {
  FLASH_OK = 0,
  FLASH_INVALID = 2, /* unknown name, shape or stride that cannot be; flash_last_error() says which */
  FLASH_DEVICE = 3,  /* no such device, one that lacks what the chapter needs, or out of memory */
  FLASH_FAULT = 4    /* the simulated GPU stopped the kernel; flash_last_error() is its report */
};

enum flash_device { FLASH_DEVICE_GPU = 0, FLASH_DEVICE_SIM = 1 };
enum flash_dtype { FLASH_FP16 = 0, FLASH_BF16 = 1 };

/* A [batch, seq, heads, head_dim] tensor: pointer on the device that runs (host pointer for the simulation) and
 * strides in elements. head_dim's stride is 1; batch, row and head strides are multiples of 8 elements, 0 or more, and
 * the pointer is 16-byte aligned. A stride of 0, of q, k or v, makes one of all batches, rows or heads. Chapters whose
 * copies are TMA's (06 to 08) take strides below 2^39 elements. */
struct flash_tensor {
  void* data;
  int64_t batch_stride, row_stride, head_stride;
};

struct flash_attention {
  int64_t batch, heads, kv_heads, seq_q, seq_kv, head_dim;
  int causal; /* 0 or 1; aligned bottom-right */
  int dtype;  /* enum flash_dtype */
  struct flash_tensor q, k, v, o;
  float* lse; /* contiguous [batch, heads, seq_q], natural logarithm; required */
};

/* The number of chapters, and their names ("01_naive"); NULL past the end. */
int flash_chapter_count(void);
const char* flash_chapter_name(int index);

/* The variants of a chapter by index ("simt"), the first being its default; NULL past the end or for an unknown
 * chapter. */
const char* flash_variant_name(const char* chapter, int index);

/* 1 when the variant needs a GPU (it uses cuBLAS), else 0; -1 for an unknown name. */
int flash_variant_gpu_only(const char* chapter, const char* variant);

/* FLASH_OK when the chapter's variant can run this shape on a device that has what the chapter needs, else
 * FLASH_INVALID with the reason in flash_last_error(). Looks at the shape only: data pointers may be NULL. */
int flash_supports(const char* chapter, const char* variant, const struct flash_attention* call);

/* Queues one attention forward on `stream` (a cudaStream_t; NULL is the default stream; ignored by the simulation,
 * which returns when it is done), on the calling thread's current CUDA device. `variant` NULL picks the default.
 * Scratch memory that a chapter needs is kept between calls, for each device and stream, and grown on demand. Returns a
 * flash_status. */
int flash_attention_forward(int device, const char* chapter, const char* variant, const struct flash_attention* call,
                            void* stream);

/* The calling thread's last error, one line (a fault report has several); empty after success. Never NULL. */
const char* flash_last_error(void);

#ifdef __cplusplus
}
#endif
#endif
