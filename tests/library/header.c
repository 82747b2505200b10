/* The library's header is valid C, and a program in C can call every chapter. With Q = 0 all scores are equal, so that
 * O is the mean of V's rows and LSE the logarithm of their number. Exits 0 when that is what comes. */
#include "common/program/flash_chapters.h"

#include <stdio.h>
#include <string.h>

enum { ROWS = 4, DIM = 64 };

/* 1, 2, 4 and 5 in fp16: their mean, 3, is exact. */
static const uint16_t values[ROWS] = {0x3c00, 0x4000, 0x4400, 0x4500};
static const uint16_t mean = 0x4200;

static _Alignas(16) uint16_t q[ROWS * DIM], k[ROWS * DIM], v[ROWS * DIM], o[ROWS * DIM];
static float lse[ROWS];

static int run(const char* chapter, const char* variant) {
  struct flash_attention call;
  int i, wrong = 0;
  memset(&call, 0, sizeof call);
  call.batch = call.heads = call.kv_heads = 1;
  call.seq_q = call.seq_kv = ROWS;
  call.head_dim = DIM;
  call.dtype = FLASH_FP16;
  call.q.data = q;
  call.k.data = k;
  call.v.data = v;
  call.o.data = o;
  call.q.row_stride = call.k.row_stride = call.v.row_stride = call.o.row_stride = DIM;
  call.lse = lse;
  memset(o, 0xff, sizeof o);
  memset(lse, 0xff, sizeof lse);
  if (flash_supports(chapter, variant, &call) != FLASH_OK ||
      flash_attention_forward(FLASH_DEVICE_SIM, chapter, variant, &call, NULL) != FLASH_OK) {
    printf("%s %s: %s\n", chapter, variant, flash_last_error());
    return 1;
  }
  for (i = 0; i < ROWS * DIM; ++i) wrong += o[i] != mean;
  for (i = 0; i < ROWS; ++i) wrong += !(lse[i] > 1.3860f && lse[i] < 1.3866f); /* log 4 = 1.38629 */
  printf("%s %s: %d wrong\n", chapter, variant, wrong);
  return wrong != 0;
}

int main(void) {
  int failed = 0, chapter, variant, i;
  const char *name, *variant_name;
  for (i = 0; i < ROWS * DIM; ++i) {
    k[i] = (uint16_t)(0x3c00 + i);
    v[i] = values[i / DIM];
  }
  for (chapter = 0; (name = flash_chapter_name(chapter)) != NULL; ++chapter) {
    for (variant = 0; (variant_name = flash_variant_name(name, variant)) != NULL; ++variant) {
      if (flash_variant_gpu_only(name, variant_name) == 0) failed |= run(name, variant_name);
    }
  }
  if (chapter == 0 || chapter != flash_chapter_count()) {
    printf("%d chapters by name, %d counted\n", chapter, flash_chapter_count());
    failed = 1;
  }
  return failed;
}
