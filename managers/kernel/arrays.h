/* The arrays of a block pool. */

#ifndef KVHYBRID_ARRAYS_H
#define KVHYBRID_ARRAYS_H

#include "arguments.h"

enum { LIVE, CACHED, REUSABLE, EVICTIONS, COUNTS };

/* One block, all of it in one line of the processor's cache: see block_keys.py for what each part means. */
typedef struct {
    int64_t release;
    int32_t refs, number, group, ahead, behind, tangled;
} Block;

typedef struct {
    PyObject_HEAD
    Py_buffer blocks, counts, index;
    Py_ssize_t num_blocks, num_groups, num_numbers;
    long long probes;
} BlockArrays;

#define BLOCK(self, b) (((Block *)(self)->blocks.buf)[b])
#define COUNT(self, what, group) (((int64_t *)(self)->counts.buf)[(what) * (self)->num_groups + (group)])
#define INDEX(self, group, number) \
    (((int32_t *)(self)->index.buf)[(Py_ssize_t)(group) * (self)->num_numbers + (number)])

static inline int is_block(BlockArrays *self, int32_t id) { return id >= 0 && id < self->num_blocks; }

static inline int is_key(BlockArrays *self, int32_t group, int32_t number)
{
    return group >= 0 && group < self->num_groups && number > 0 && number < self->num_numbers;
}

/* One block more or fewer of a kind, where it belongs to a group. */
static inline void tally(BlockArrays *self, int what, int32_t group, int by)
{
    if (group >= 0 && group < self->num_groups)
        COUNT(self, what, group) += by;
}

/* A number from an argument; a wrong one becomes 0, under which nothing is ever keyed. */
static inline int32_t number_at(BlockArrays *self, Ints *numbers, Py_ssize_t j)
{
    int32_t number = AT(numbers, 0, j);
    return number >= 0 && number < self->num_numbers ? number : 0;
}

static inline void refuse_block(BlockArrays *self, int32_t id)
{
    PyErr_Format(PyExc_IndexError, "block %d is not of this pool of %zd", id, self->num_blocks);
}

static inline int are_blocks(BlockArrays *self, Ints *ids)
{
    for (Py_ssize_t i = 0; i < ids->rows; i++)
        for (Py_ssize_t j = 0; j < ids->columns; j++)
            if (!is_block(self, AT(ids, i, j))) {
                refuse_block(self, AT(ids, i, j));
                return 0;
            }
    return 1;
}

static inline int are_groups(BlockArrays *self, Ints *groups, Py_ssize_t count, int32_t lowest)
{
    if (groups->columns < count) {
        PyErr_Format(PyExc_IndexError, "%zd groups are needed, found %zd", count, groups->columns);
        return 0;
    }
    for (Py_ssize_t i = 0; i < groups->columns; i++)
        if (AT(groups, 0, i) < lowest || AT(groups, 0, i) >= self->num_groups) {
            PyErr_Format(PyExc_IndexError, "group %d is not of %zd", AT(groups, 0, i), self->num_groups);
            return 0;
        }
    return 1;
}

#endif
