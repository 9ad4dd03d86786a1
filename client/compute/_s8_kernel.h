/* The S8 kernel in C: the work of client/compute/s8.py and conditioning.py in one pass.
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

INLINE int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

/* The bits of the largest magnitude; as integers NaN is above infinity and infinity above all. They
 * are signed because SSE2 compares no others. */
INLINE int32_t peak_bits(const float *block) {
    int32_t peak = 0;
    for (int i = 0; i < BLOCK; i++)
        peak = larger((int32_t)(bits_of(block[i]) & 0x7FFFFFFF), peak);
    return peak;
}

/* The bits of the scale for a peak, not rounded yet. */
INLINE int32_t scale_bits(int32_t peak) {
    int32_t bits = (int32_t)bits_of(number_of((uint32_t)peak) * (float)(1.0 / 127));
    return larger(bits, SMALLEST_SCALE_BITS << 16);
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

/* The place of a block in its tensor. */
typedef struct {
    float *numbers;
    size_t channel;
} Place;

INLINE Place next_place(const Tensor *tensor, Place place) {
    place.numbers += smaller(BLOCK, tensor->width - place.channel);
    place.channel += BLOCK;
    if (place.channel >= tensor->width)
        place.channel = 0;
    return place;
}

/* Ask for `count` numbers that lie `ahead` of `start` and will soon be used; processors do not predict the access pattern of a tile. Past the end of the tensor that does nothing. */
INLINE void prefetch(const float *start, size_t ahead, size_t count, int write) {
#ifdef __GNUC__
    uintptr_t first = (uintptr_t)start + ahead * sizeof(float);
    for (size_t i = 0; i < count; i += LINE) {
        const void *line = (const void *)(first + i * sizeof(float));
        write ? __builtin_prefetch(line, 1) : __builtin_prefetch(line, 0);
    }
#else
    (void)start, (void)ahead, (void)count, (void)write;
#endif
}

/* A block ready to be quantised: where it lies, or a conditioned copy of it. */
INLINE const float *prepared(const Tensor *tensor, Place place, float *restrict copy) {
    const float *block = place.numbers;
    size_t length = tensor->width - place.channel;
    float padded[BLOCK];
    if (length < BLOCK) {
        memset(padded, 0, sizeof padded);
        memcpy(padded, block, length * sizeof *padded);
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

INLINE void quantise(const float *restrict block, float factor, uint8_t *restrict out) {
    for (int i = 0; i < BLOCK; i++)
        out[i] = (uint8_t)bits_of(block[i] * factor + ROUNDER);
}

/* Scales and values of up to 16 blocks from `place` on, which moves; 0 if one is poisoned. */
INLINE int encode_group(const Tensor *tensor, Place *place, size_t count, uint8_t *restrict scales,
                        uint8_t *restrict values) {
    float copies[GROUP][BLOCK];
    const float *blocks[GROUP];
    int32_t peaks[GROUP] = {0}, highest = 0;
    uint16_t wire[GROUP];
    float reciprocals[GROUP];
    for (size_t i = 0; i < count; i++) {
        prefetch(place->numbers, GROUP * BLOCK, BLOCK / 2, 0);
        blocks[i] = prepared(tensor, *place, copies[i]);
        peaks[i] = peak_bits(blocks[i]);
        *place = next_place(tensor, *place);
    }
    for (int i = 0; i < GROUP; i++)
        highest = larger(peaks[i], highest);
    if (scale_bits(highest) > LARGEST_SCALE_BITS << 16)
        return 0;
    for (int i = 0; i < GROUP; i++) {
        uint32_t rounded_up = ((uint32_t)scale_bits(peaks[i]) + 0xFFFF) & 0xFFFF0000;
        wire[i] = (uint16_t)(rounded_up >> 16);
        reciprocals[i] = 1.0f / number_of(rounded_up);
    }
    memcpy(scales, wire, count * sizeof *wire);
    for (size_t i = 0; i < count; i++) { /* the other halves, so that memory is never idle */
        prefetch(place->numbers, i * BLOCK + BLOCK / 2, BLOCK / 2, 0);
        quantise(blocks[i], reciprocals[i], values + i * BLOCK);
    }
    return 1;
}

INLINE int encode_tensor(const Tensor *tensor, uint8_t *body) {
    Place place = {tensor->numbers, 0};
    size_t blocks = tensor->rows * tensor->blocks_per_row;
    for (size_t tile = 0; tile < blocks; tile += TILE_BLOCKS, body += TILE_BYTES) {
        size_t length = smaller(TILE_BLOCKS, blocks - tile);
        uint8_t *values = body + 2 * length;
        for (size_t i = 0; i < length; i += GROUP) {
            size_t count = smaller(GROUP, length - i);
            if (!encode_group(tensor, &place, count, body + 2 * i, values + BLOCK * i))
                return 0;
        }
    }
    return 1;
}

INLINE void dequantise(const int8_t *restrict values, float scale, float *restrict out) {
    for (int i = 0; i < BLOCK; i++)
        out[i] = (float)values[i] * scale;
}

/* Whether one is -128, which no encoder writes: it would be a magnitude above the largest. */
INLINE int out_of_range(const int8_t *values) {
    uint8_t found = 0;
    for (int i = 0; i < BLOCK; i++)
        found |= values[i] == INT8_MIN;
    return found;
}

INLINE void decode_block(const Tensor *tensor, Place place, float scale, const int8_t *values) {
    size_t length = tensor->width - place.channel;
    float padded[BLOCK], rotated[BLOCK];
    float *out = length < BLOCK ? padded : place.numbers;
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
        memcpy(place.numbers, padded, length * sizeof *padded);
}

INLINE int decode_tensor(const Tensor *tensor, uint8_t *body) {
    Place place = {tensor->numbers, 0};
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
            prefetch(place.numbers, AHEAD * BLOCK, BLOCK, 1);
            refused |= out_of_range(values + BLOCK * i);
            decode_block(tensor, place, scale, values + BLOCK * i);
            place = next_place(tensor, place);
        }
        if (refused)
            return 0;
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
    int32_t highest = 0;
    for (size_t row = 0; row < tensor->rows; row += step) {
        Place place = {tensor->numbers + row * tensor->width, 0};
        for (size_t i = 0; i < tensor->blocks_per_row; i++) {
            float copy[BLOCK], squares[BLOCK];
            const float *block = prepared(tensor, place, copy);
            place = next_place(tensor, place);
            for (int j = 0; j < BLOCK; j++)
                squares[j] = block[j] * block[j];
            for (int half = BLOCK / 2; half; half /= 2)
                for (int j = 0; j < half; j++)
                    squares[j] += squares[j + half];
            int32_t bits = peak_bits(block);
            double peak = number_of((uint32_t)bits);
            highest = larger(bits, highest);
            found.signal += squares[0];
            found.peaks += peak * peak;
        }
    }
    found.highest = number_of((uint32_t)highest);
    return found;
}

#endif
