/* The arrays of a block pool. The pool owns them and can write anything into them, so every id, number and link that is
   read from them is checked before it is followed. */

#ifndef KVHYBRID_ARRAYS_H
#define KVHYBRID_ARRAYS_H

#include "arguments.h"

enum { LIVE, CACHED, REUSABLE, EVICTIONS, COUNTS };

/* One block. A record fills half a line of the processor's cache; plain.py says what the fields mean. */
typedef struct {
    int64_t release;
    int32_t refs, number, group, ahead, behind, irregular;
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

static inline int shares_memory(const Ints *array, const Py_buffer *kept)
{
    return overlaps(array, (uintptr_t)kept->buf, (uintptr_t)kept->buf + kept->len);
}

/* Open the arguments of a method that changes the pool. Its writes must not change what it has checked, so no argument
   may share memory with the pool's own arrays. */
static inline int open_apart(BlockArrays *self, PyObject *const *args, Py_ssize_t count, const char *form,
                             Arguments *found)
{
    if (open_arguments(args, count, form, found) < 0)
        return -1;
    for (int k = 0; k < found->num_arrays; k++) {
        const Ints *array = &found->ints[k];
        if (shares_memory(array, &self->blocks) || shares_memory(array, &self->index) ||
            shares_memory(array, &self->counts)) {
            PyErr_SetString(PyExc_ValueError, "an argument shares memory with the pool's own arrays");
            close_arguments(found);
            return -1;
        }
    }
    return 0;
}

static inline int is_block(const BlockArrays *self, int32_t id) { return (size_t)id < (size_t)self->num_blocks; }

static inline int is_group(const BlockArrays *self, int32_t group) { return group >= 0 && group < self->num_groups; }

static inline int is_key(const BlockArrays *self, int32_t group, int32_t number)
{
    return is_group(self, group) && number > 0 && number < self->num_numbers;
}

/* Count blocks of a kind, if they belong to a group. */
static inline void tally(BlockArrays *self, int what, int32_t group, int64_t by)
{
    if (is_group(self, group))
        COUNT(self, what, group) += by;
}

/* A prefix number from an argument; a wrong one becomes 0, under which nothing is ever keyed. */
static inline int32_t number_at(BlockArrays *self, Ints *numbers, Py_ssize_t j)
{
    int32_t number = AT(numbers, 0, j);
    return number >= 0 && number < self->num_numbers ? number : 0;
}

static inline void refuse_block(BlockArrays *self, int32_t id)
{
    PyErr_Format(PyExc_IndexError, "block %d is not in this pool of %zd blocks", id, self->num_blocks);
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

/* Whether there are at least count groups, none below lowest. */
static inline int are_groups(BlockArrays *self, Ints *groups, Py_ssize_t count, int32_t lowest)
{
    if (groups->columns < count) {
        PyErr_Format(PyExc_IndexError, "%zd groups are needed, found %zd", count, groups->columns);
        return 0;
    }
    for (Py_ssize_t i = 0; i < groups->columns; i++)
        if (AT(groups, 0, i) < lowest || AT(groups, 0, i) >= self->num_groups) {
            PyErr_Format(PyExc_IndexError, "group %d is not in [0, %zd)", AT(groups, 0, i), self->num_groups);
            return 0;
        }
    return 1;
}

#endif
