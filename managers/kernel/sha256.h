/* SHA-256 (FIPS 180-4) over whole blocks of 64 bytes, two messages side by side. */

#ifndef KVHYBRID_SHA256_H
#define KVHYBRID_SHA256_H

#include <stddef.h>
#include <stdint.h>

#include "hidden.h"

enum { SHA256_BLOCK = 64, SHA256_DIGEST = 32, SHA256_MAX_PADDING = 72 };

/* Blocks of one message that are still to be compressed into its state. */
typedef struct {
    uint32_t *state;
    const uint8_t *blocks;
    size_t count;
} Sha256Run;

HIDDEN extern const uint32_t SHA256_START[8];

/* Whether the processor has instructions for SHA-256. Ask once: a virtual machine takes long to answer. */
HIDDEN int sha256_has_instructions(void);

/* Pad a message of length bytes, which has room for SHA256_MAX_PADDING more. Returns its number of blocks. */
HIDDEN size_t sha256_pad(uint8_t *message, size_t length);

/* Compress both runs; the second may be empty. They are independent, so the processor works on one while it waits for
   the other. */
HIDDEN void sha256_compress(Sha256Run one, Sha256Run other, int with_instructions);

HIDDEN void sha256_digest(const uint32_t *state, uint8_t *digest);

#endif
