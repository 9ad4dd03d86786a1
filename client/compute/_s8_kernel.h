/* The S8 kernel in C: what client/compute/s8.py and conditioning.py do with torch, in one pass.
 *
 * Every number is computed by the same operations in the same order as there, so that wire bytes
 * and decoded numbers are bit-identical; build with -ffp-contract=off, never with -ffast-math.
 * The loops are written for the compiler's vectoriser, and inlined into one function for each
 * instruction set. Nothing here checks a size: _s8.c does, before it calls.
 *
 * State: none. N blocks of 128; a payload is tiles of 512 scales and then 512 blocks of int8.
 */

#ifndef CLIENT_COMPUTE_S8_KERNEL_H
#define CLIENT_COMPUTE_S8_KERNEL_H

#include <float.h>
#include <stdint.h>
#include <string.h>

#if FLT_EVAL_METHOD != 0
#error "intermediate results would be kept in a wider type and the bytes would differ"
#endif

enum {
    BLOCK = 128,
    TILE_BLOCKS = 512,
    TILE_BYTES = TILE_BLOCKS * (BLOCK + 2),
    GROUP = 16,    /* blocks that share the arithmetic on their scales; 8 KiB stay in the cache */
    ROTATION = 64, /* numbers that are rotated together */
    AHEAD = 4,     /* blocks between asking for memory and writing to it */
    LINE = 16,     /* numbers in a line of the cache; where it is longer, asking twice is harmless */
    LEAF_ROWS = 8, /* rows that are summed in registers */
};

/* Bounds of a scale, 2^-100 and 2^40, as bf16. */
#define SMALLEST_SCALE_BITS 0x0D80
#define LARGEST_SCALE_BITS 0x5380
#define ROUNDER 0x1.8p23f /* adding it rounds to whole numbers, halves to even */

#if defined(__GNUC__) || defined(__clang__)
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline
#endif

/* A tensor as rows of `width` numbers; the last block of a row may be short. */
typedef struct {
    float *numbers;
    size_t rows, width, blocks_per_row;
    const float *factors; /* one per channel, padded to whole blocks, or NULL */
    int rotated;
} Tensor;

INLINE uint32_t bits_of(float number) {
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    return bits;
}

INLINE float number_of(uint32_t bits) {
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

INLINE size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

/* The bits of the largest magnitude; as integers NaN is above infinity and infinity above all. */
INLINE uint32_t peak_bits(const float *block) {
    int32_t peak = 0; /* signed: SSE2 compares no others */
    for (int i = 0; i < BLOCK; i++) {
        int32_t bits = (int32_t)(bits_of(block[i]) & 0x7FFFFFFF);
        peak = bits > peak ? bits : peak;
    }
    return (uint32_t)peak;
}

/* Hadamard matrix of 64 times a vector, without its 1/8: six times sums and differences of halves. */
INLINE void butterfly(const float *restrict in, float *restrict out) {
    for (int i = 0; i < ROTATION / 2; i++) {
        float a = in[i], b = in[i + ROTATION / 2];
        out[2 * i] = a + b;
        out[2 * i + 1] = a - b;
    }
}

INLINE void rotate_half(const float *restrict in, float *restrict out) {
    float numbers[ROTATION], other[ROTATION];
    butterfly(in, other);
    butterfly(other, numbers);
    butterfly(numbers, other);
    butterfly(other, numbers);
    butterfly(numbers, other);
    butterfly(other, numbers);
    for (int i = 0; i < ROTATION; i++)
        out[i] = numbers[i] * 0.125f;
}

INLINE void rotate(const float *restrict in, float *restrict out) {
    rotate_half(in, out);
    rotate_half(in + ROTATION, out + ROTATION);
}

/* Where a block lies in its tensor. */
typedef struct {
    float *numbers;
    size_t channel, length;
} Place;

INLINE Place place_of(const Tensor *tensor, size_t index) {
    size_t row = index / tensor->blocks_per_row;
    size_t channel = (index - row * tensor->blocks_per_row) * BLOCK;
    return (Place){
        tensor->numbers + row * tensor->width + channel,
        channel,
        smaller(BLOCK, tensor->width - channel),
    };
}

/* Ask for a block a little before its turn; processors do not foresee the way through a tile. */
INLINE void prefetch(const Tensor *tensor, size_t index, int write) {
#ifdef __GNUC__
    if (index >= tensor->rows * tensor->blocks_per_row)
        return;
    const float *block = place_of(tensor, index).numbers;
    for (int i = 0; i < BLOCK; i += LINE)
        write ? __builtin_prefetch(block + i, 1) : __builtin_prefetch(block + i, 0);
#else
    (void)tensor, (void)index, (void)write;
#endif
}

/* A block ready to be quantised: where it lies, or a conditioned copy of it. */
INLINE const float *prepared(const Tensor *tensor, size_t index, float *restrict copy) {
    Place place = place_of(tensor, index);
    const float *block = place.numbers;
    float padded[BLOCK];
    if (place.length < BLOCK) {
        memset(padded, 0, sizeof padded);
        memcpy(padded, block, place.length * sizeof *padded);
        block = padded;
    }
    if (tensor->rotated) {
        rotate(block, copy);
    } else if (tensor->factors) {
        const float *factors = tensor->factors + place.channel;
        for (int i = 0; i < BLOCK; i++)
            copy[i] = block[i] * factors[i];
    } else if (block == padded) {
        memcpy(copy, padded, sizeof padded);
    } else {
        return block;
    }
    return copy;
}

/* Scales and values of up to 16 blocks; 0 if one of them is poisoned. */
INLINE int encode_group(const Tensor *tensor, size_t first, size_t count, uint8_t *scales,
                        uint8_t *values) {
    float copies[GROUP][BLOCK];
    const float *blocks[GROUP];
    uint32_t peaks[GROUP] = {0};
    uint16_t wire[GROUP];
    float reciprocals[GROUP];
    for (size_t i = 0; i < count; i++) {
        prefetch(tensor, first + i + GROUP, 0);
        blocks[i] = prepared(tensor, first + i, copies[i]);
        peaks[i] = peak_bits(blocks[i]);
    }
    int32_t highest = 0;
    for (int i = 0; i < GROUP; i++) {
        int32_t bits = (int32_t)bits_of(number_of(peaks[i]) * (float)(1.0 / 127));
        bits = bits < SMALLEST_SCALE_BITS << 16 ? SMALLEST_SCALE_BITS << 16 : bits;
        highest = bits > highest ? bits : highest;
        uint32_t rounded = ((uint32_t)bits + 0xFFFF) & 0xFFFF0000;
        wire[i] = (uint16_t)(rounded >> 16);
        reciprocals[i] = 1.0f / number_of(rounded);
    }
    memcpy(scales, wire, count * sizeof *wire);
    for (size_t i = 0; i < count; i++) {
        const float *block = blocks[i];
        uint8_t *out = values + i * BLOCK;
        float factor = reciprocals[i];
        for (int j = 0; j < BLOCK; j++)
            out[j] = (uint8_t)bits_of(block[j] * factor + ROUNDER);
    }
    return highest <= LARGEST_SCALE_BITS << 16;
}

INLINE int encode_tensor(const Tensor *tensor, uint8_t *body) {
    size_t blocks = tensor->rows * tensor->blocks_per_row;
    for (size_t tile = 0; tile < blocks; tile += TILE_BLOCKS, body += TILE_BYTES) {
        size_t length = smaller(TILE_BLOCKS, blocks - tile);
        uint8_t *values = body + 2 * length;
        for (size_t i = 0; i < length; i += GROUP) {
            size_t count = smaller(GROUP, length - i);
            if (!encode_group(tensor, tile + i, count, body + 2 * i, values + BLOCK * i))
                return 0;
        }
    }
    return 1;
}

INLINE void dequantise(const int8_t *restrict values, float scale, float *restrict out) {
    for (int i = 0; i < BLOCK; i++)
        out[i] = (float)values[i] * scale;
}

INLINE void decode_block(const Tensor *tensor, size_t index, float scale, const int8_t *values) {
    Place place = place_of(tensor, index);
    float padded[BLOCK], rotated[BLOCK];
    float *out = place.length < BLOCK ? padded : place.numbers;
    if (tensor->rotated) {
        dequantise(values, scale, rotated);
        rotate(rotated, out);
    } else if (tensor->factors) {
        const float *factors = tensor->factors + place.channel;
        for (int i = 0; i < BLOCK; i++)
            out[i] = (float)values[i] * scale * factors[i];
    } else {
        dequantise(values, scale, out);
    }
    if (out == padded)
        memcpy(place.numbers, padded, place.length * sizeof *padded);
}

INLINE int decode_tensor(const Tensor *tensor, uint8_t *body) {
    size_t blocks = tensor->rows * tensor->blocks_per_row;
    for (size_t tile = 0; tile < blocks; tile += TILE_BLOCKS, body += TILE_BYTES) {
        size_t length = smaller(TILE_BLOCKS, blocks - tile);
        const int8_t *values = (const int8_t *)body + 2 * length;
        uint16_t scales[TILE_BLOCKS];
        int refused = 0;
        memcpy(scales, body, length * sizeof *scales);
        for (size_t i = 0; i < length; i++) /* negative numbers and NaN are above the largest */
            refused |= scales[i] < SMALLEST_SCALE_BITS || scales[i] > LARGEST_SCALE_BITS;
        if (refused)
            return 0;
        for (size_t i = 0; i < length; i++) {
            float scale = number_of((uint32_t)scales[i] << 16);
            prefetch(tensor, tile + i + AHEAD, 1);
            decode_block(tensor, tile + i, scale, values + BLOCK * i);
        }
    }
    return 1;
}

/* Sum of magnitudes per channel as a binary tree over the rows. `levels` holds a row of partial
 * sums for each level of the tree above eight rows, like the digits of a binary counter. */
INLINE void sum_channels(const Tensor *tensor, float *totals, float *levels) {
    size_t width = tensor->width, leaves = 0, level;
    for (size_t row = 0; row < tensor->rows; row += LEAF_ROWS, leaves++) {
        const float *rows = tensor->numbers + row * width;
        size_t count = smaller(LEAF_ROWS, tensor->rows - row);
        if (count == LEAF_ROWS) {
            for (size_t c = 0; c < width; c++) {
                float sums[LEAF_ROWS];
                for (int i = 0; i < LEAF_ROWS; i++)
                    sums[i] = number_of(bits_of(rows[i * width + c]) & 0x7FFFFFFF);
                totals[c] = ((sums[0] + sums[1]) + (sums[2] + sums[3])) +
                            ((sums[4] + sums[5]) + (sums[6] + sums[7]));
            }
        } else {
            for (size_t c = 0; c < width; c++) {
                float sums[LEAF_ROWS] = {0};
                for (size_t i = 0; i < count; i++)
                    sums[i] = number_of(bits_of(rows[i * width + c]) & 0x7FFFFFFF);
                totals[c] = ((sums[0] + sums[1]) + (sums[2] + sums[3])) +
                            ((sums[4] + sums[5]) + (sums[6] + sums[7]));
            }
        }
        for (level = 0; leaves >> level & 1; level++)
            for (size_t c = 0; c < width; c++)
                totals[c] += levels[level * width + c];
        memcpy(levels + level * width, totals, width * sizeof *totals);
    }
    memset(totals, 0, width * sizeof *totals);
    for (level = 0; leaves >> level; level++)
        if (leaves >> level & 1)
            for (size_t c = 0; c < width; c++)
                totals[c] += levels[level * width + c];
}

typedef struct {
    double signal, peaks; /* sums of squares: of all numbers, of the blocks' peaks */
    float highest;
} Probed;

/* Sums over the blocks of every `step`-th row: a tree in each block, then one after the other. */
INLINE Probed probe_rows(const Tensor *tensor, size_t step) {
    Probed found = {0, 0, 0};
    uint32_t highest = 0;
    for (size_t row = 0; row < tensor->rows; row += step) {
        for (size_t i = 0; i < tensor->blocks_per_row; i++) {
            float copy[BLOCK], squares[BLOCK];
            const float *block = prepared(tensor, row * tensor->blocks_per_row + i, copy);
            for (int j = 0; j < BLOCK; j++)
                squares[j] = block[j] * block[j];
            for (int half = BLOCK / 2; half; half /= 2)
                for (int j = 0; j < half; j++)
                    squares[j] += squares[j + half];
            uint32_t bits = peak_bits(block);
            double peak = number_of(bits);
            highest = bits > highest ? bits : highest;
            found.signal += squares[0];
            found.peaks += peak * peak;
        }
    }
    found.highest = number_of(highest);
    return found;
}

#endif
