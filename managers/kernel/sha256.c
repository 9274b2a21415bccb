#include "sha256.h"

#include <string.h>

const uint32_t SHA256_START[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                  0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

static const uint32_t ROUND_CONSTANTS[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

size_t sha256_pad(uint8_t *message, size_t length)
{
    size_t blocks = (length + 8) / SHA256_BLOCK + 1, end = blocks * SHA256_BLOCK;
    memset(message + length, 0, end - length);
    message[length] = 0x80;
    for (int i = 0; i < 8; i++)
        message[end - 1 - i] = (uint8_t)((uint64_t)length * 8 >> 8 * i);
    return blocks;
}

void sha256_digest(const uint32_t *state, uint8_t *digest)
{
    for (int i = 0; i < 8; i++) {
        digest[4 * i] = (uint8_t)(state[i] >> 24);
        digest[4 * i + 1] = (uint8_t)(state[i] >> 16);
        digest[4 * i + 2] = (uint8_t)(state[i] >> 8);
        digest[4 * i + 3] = (uint8_t)state[i];
    }
}

static uint32_t rotated(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void compress(uint32_t *state, const uint8_t *block)
{
    uint32_t w[64], v[8];
    for (int t = 0; t < 16; t++)
        w[t] = (uint32_t)block[4 * t] << 24 | block[4 * t + 1] << 16 | block[4 * t + 2] << 8 | block[4 * t + 3];
    for (int t = 16; t < 64; t++) {
        uint32_t low = rotated(w[t - 15], 7) ^ rotated(w[t - 15], 18) ^ w[t - 15] >> 3;
        uint32_t high = rotated(w[t - 2], 17) ^ rotated(w[t - 2], 19) ^ w[t - 2] >> 10;
        w[t] = w[t - 16] + low + w[t - 7] + high;
    }
    memcpy(v, state, sizeof v);
    for (int t = 0; t < 64; t++) {
        uint32_t a = v[0], e = v[4];
        uint32_t one = v[7] + (rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25)) + ((e & v[5]) ^ (~e & v[6])) +
                       ROUND_CONSTANTS[t] + w[t];
        uint32_t two =
            (rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22)) + ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof v[0]);
        v[4] += one;
        v[0] = one + two;
    }
    for (int i = 0; i < 8; i++)
        state[i] += v[i];
}

static void compress_plainly(Sha256Run run)
{
    for (size_t i = 0; i < run.count; i++)
        compress(run.state, run.blocks + SHA256_BLOCK * i);
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#include <immintrin.h>

#define WITH_INSTRUCTIONS __attribute__((target("sha,sse4.1"), always_inline)) static inline

int sha256_has_instructions(void)
{
    unsigned int a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 29 & 1) && __builtin_cpu_supports("sse4.1");
}

/* One compression on its way. The instructions want the state as (A, B, E, F) and (C, D, G, H), the highest word
   first; w holds the next 16 words of the message schedule. */
typedef struct {
    __m128i abef, cdgh, old_abef, old_cdgh, w[4];
} Lane;

WITH_INSTRUCTIONS void start(Lane *lane, const uint32_t *state, const uint8_t *block)
{
    const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    __m128i badc = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0xB1);
    __m128i hgfe = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(state + 4)), 0x1B);
    lane->abef = lane->old_abef = _mm_alignr_epi8(badc, hgfe, 8);
    lane->cdgh = lane->old_cdgh = _mm_blend_epi16(hgfe, badc, 0xF0);
    for (int i = 0; i < 4; i++)
        lane->w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(block + 16 * i)), big_endian);
}

WITH_INSTRUCTIONS void four_rounds(Lane *lane, int i)
{
    __m128i *now = &lane->w[i % 4], next = lane->w[(i + 1) % 4], last = lane->w[(i + 3) % 4];
    __m128i wk = _mm_add_epi32(*now, _mm_loadu_si128((const __m128i *)(ROUND_CONSTANTS + 4 * i)));
    lane->cdgh = _mm_sha256rnds2_epu32(lane->cdgh, lane->abef, wk);
    lane->abef = _mm_sha256rnds2_epu32(lane->abef, lane->cdgh, _mm_shuffle_epi32(wk, 0x0E));
    if (i < 12) { /* words that later rounds need */
        __m128i seventh = _mm_alignr_epi8(last, lane->w[(i + 2) % 4], 4);
        *now = _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(*now, next), seventh), last);
    }
}

WITH_INSTRUCTIONS void finish(Lane *lane, uint32_t *state)
{
    __m128i abef = _mm_shuffle_epi32(_mm_add_epi32(lane->abef, lane->old_abef), 0x1B);
    __m128i cdgh = _mm_shuffle_epi32(_mm_add_epi32(lane->cdgh, lane->old_cdgh), 0xB1);
    _mm_storeu_si128((__m128i *)state, _mm_blend_epi16(abef, cdgh, 0xF0));
    _mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(cdgh, abef, 8));
}

__attribute__((target("sha,sse4.1"))) static void compress_one(uint32_t *state, const uint8_t *block)
{
    Lane lane;
    start(&lane, state, block);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        four_rounds(&lane, i);
    finish(&lane, state);
}

__attribute__((target("sha,sse4.1"))) static void compress_two(uint32_t *one, const uint8_t *block, uint32_t *other,
                                                               const uint8_t *other_block)
{
    Lane a, b;
    start(&a, one, block);
    start(&b, other, other_block);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        four_rounds(&a, i);
        four_rounds(&b, i);
    }
    finish(&a, one);
    finish(&b, other);
}

static void compress_both_natively(Sha256Run one, Sha256Run other)
{
    size_t i = 0;
    for (; i < one.count && i < other.count; i++)
        compress_two(one.state, one.blocks + SHA256_BLOCK * i, other.state, other.blocks + SHA256_BLOCK * i);
    for (size_t j = i; j < one.count; j++)
        compress_one(one.state, one.blocks + SHA256_BLOCK * j);
    for (size_t j = i; j < other.count; j++)
        compress_one(other.state, other.blocks + SHA256_BLOCK * j);
}
#else
int sha256_has_instructions(void) { return 0; }

static void compress_both_natively(Sha256Run one, Sha256Run other)
{
    compress_plainly(one);
    compress_plainly(other);
}
#endif

void sha256_compress(Sha256Run one, Sha256Run other, int with_instructions)
{
    if (with_instructions) {
        compress_both_natively(one, other);
    } else {
        compress_plainly(one);
        compress_plainly(other);
    }
}
