// Matrix products D = A B + C by single mma.sync and wgmma instructions; compiled and called by make_hardware_vectors.py.
#include <cstdint>
#include <cuda_runtime.h>
// Operands are read as 32-bit words, eight a row and block: 16 halves or 8 TF32. B is stored as B^T.
#define OUT4 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define MMA(NAME, TYPES)                                                                                   \
  struct NAME { static __device__ void run(float* d, const uint32_t* a, const uint32_t* b) {               \
    asm volatile("mma.sync.aligned." TYPES " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"        \
      : OUT4 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); } };
#define WGMMA(NAME, TYPES, TRANS)                                                                          \
  struct NAME { static __device__ void run(float* d, uint64_t a, uint64_t b) {                             \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.fence.sync.aligned; "                         \
      "wgmma.mma_async.sync.aligned." TYPES " {%0,%1,%2,%3}, %4, %5, p, 1, 1" TRANS "; "                   \
      "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; }"                                \
      : OUT4 : "l"(a), "l"(b) : "memory"); } };
MMA(MmaFp16, "m16n8k16.row.col.f32.f16.f16.f32")
MMA(MmaBf16, "m16n8k16.row.col.f32.bf16.bf16.f32")
MMA(MmaTf32, "m16n8k8.row.col.f32.tf32.tf32.f32")
WGMMA(WgmmaFp16, "m64n8k16.f32.f16.f16", ", 0, 0")
WGMMA(WgmmaBf16, "m64n8k16.f32.bf16.bf16", ", 0, 0")
WGMMA(WgmmaTf32, "m64n8k8.f32.tf32.tf32", "")

// One tile a thread block of four warps; warp w owns rows 16 w to 16 w + 15, in both instructions.
struct Lane {
  int row, col;
  __device__ Lane() : row(threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4), col(threadIdx.x % 4) {}
  __device__ int c(int i) const { return (row + i / 2 * 8) * 8 + 2 * col + i % 2; }
};
template <class Op> __global__ void mma(const uint32_t* a, const uint32_t* b, const float* c, float* out, int steps) {
  Lane lane; int k = 8 * steps, n = threadIdx.x % 32 / 4; float d[4];
  a += blockIdx.x * 64 * k; b += blockIdx.x * 8 * k; c += blockIdx.x * 512; out += blockIdx.x * 512;
  for (int i = 0; i < 4; i++) d[i] = c[lane.c(i)];
  for (int s = 0; s < steps; s++) {
    const uint32_t *x = a + lane.row * k + 8 * s + lane.col, *y = b + n * k + 8 * s + lane.col;
    uint32_t fa[4] = {x[0], x[8 * k], x[4], x[8 * k + 4]}, fb[2] = {y[0], y[4]};
    Op::run(d, fa, fb);
  }
  for (int i = 0; i < 4; i++) out[lane.c(i)] = d[i];
}
// Shared memory without swizzle: core matrices of 8 rows by 16 bytes, 128 bytes apart along k, 256 along m or n.
__device__ uint64_t descriptor(const void* p) {
  uint64_t address = __cvta_generic_to_shared(p);
  return (address & 0x3FFFF) >> 4 | uint64_t(128 >> 4) << 16 | uint64_t(256 >> 4) << 32;
}
__device__ int place(int i) { int row = i / 8, word = i % 8; return row / 8 * 64 + word / 4 * 32 + row % 8 * 4 + word % 4; }
template <class Op> __global__ void wgmma(const uint32_t* a, const uint32_t* b, const float* c, float* out, int steps) {
  __shared__ alignas(128) uint32_t sa[512], sb[64];
  Lane lane; int k = 8 * steps; float d[4];
  a += blockIdx.x * 64 * k; b += blockIdx.x * 8 * k; c += blockIdx.x * 512; out += blockIdx.x * 512;
  for (int i = 0; i < 4; i++) d[i] = c[lane.c(i)];
  for (int s = 0; s < steps; s++) {
    for (int i = threadIdx.x; i < 512; i += 128) sa[place(i)] = a[i / 8 * k + 8 * s + i % 8];
    for (int i = threadIdx.x; i < 64; i += 128) sb[place(i)] = b[i / 8 * k + 8 * s + i % 8];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    Op::run(d, descriptor(sa), descriptor(sb));
    __syncthreads();
  }
  for (int i = 0; i < 4; i++) out[lane.c(i)] = d[i];
}
using Kernel = void (*)(const uint32_t*, const uint32_t*, const float*, float*, int);
extern "C" const char* device_name() {
  static cudaDeviceProp p;
  return cudaGetDeviceProperties(&p, 0) == cudaSuccess ? p.name : "";
}
extern "C" const char* run(int which, const void* a, const void* b, const void* c, void* out, int tiles, int steps) {
  Kernel kernels[] = {mma<MmaFp16>, mma<MmaBf16>, mma<MmaTf32>, wgmma<WgmmaFp16>, wgmma<WgmmaBf16>, wgmma<WgmmaTf32>};
  size_t bytes[] = {size_t(tiles) * 64 * 32 * steps, size_t(tiles) * 8 * 32 * steps, size_t(tiles) * 2048};
  const void* host[] = {a, b, c};
  void* dev[3];
  for (int i = 0; i < 3; i++) {
    cudaMalloc(&dev[i], bytes[i]);
    cudaMemcpy(dev[i], host[i], bytes[i], cudaMemcpyHostToDevice);
  }
  kernels[which]<<<tiles, 128>>>((uint32_t*)dev[0], (uint32_t*)dev[1], (float*)dev[2], (float*)dev[2], steps);
  cudaMemcpy(out, dev[2], bytes[2], cudaMemcpyDeviceToHost);
  for (void* p : dev) cudaFree(p);
  return cudaGetErrorString(cudaGetLastError());
}
