/* The arrays of a block pool, and how a function reads its arguments. */

#ifndef KVHYBRID_ARRAYS_H
#define KVHYBRID_ARRAYS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

enum { LIVE, CACHED, REUSABLE, EVICTIONS, COUNTS };

/* One block, all of it in one line of the processor's cache: see block_keys.py for what each part means. */
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

/* An int32 array of one or two dimensions and any stride. */
typedef struct {
    Py_buffer buffer;
    char *data;
    Py_ssize_t rows, columns, row_stride, stride;
} Ints;

#define AT(a, i, j) (*(int32_t *)((a)->data + (i) * (a)->row_stride + (j) * (a)->stride))

#define MOST_ARGUMENTS 4

typedef struct {
    Ints ints[MOST_ARGUMENTS];
    Py_ssize_t numbers[MOST_ARGUMENTS];
} Arguments;

static void close_arguments(Arguments *found)
{
    for (int k = 0; k < MOST_ARGUMENTS; k++)
        if (found->ints[k].buffer.obj)
            PyBuffer_Release(&found->ints[k].buffer);
}

static int open_ints(PyObject *object, Ints *found, int writable)
{
    Py_buffer *b = &found->buffer;
    if (PyObject_GetBuffer(object, b, writable ? PyBUF_STRIDED : PyBUF_STRIDED_RO) < 0)
        return -1;
    if (b->itemsize != 4 || b->ndim < 1 || b->ndim > 2) {
        PyErr_Format(PyExc_TypeError, "an int32 array of one or two dimensions is needed, found %d of %zd bytes",
                     b->ndim, b->itemsize);
        return -1;
    }
    found->data = b->buf;
    found->rows = b->ndim == 2 ? b->shape[0] : 1;
    found->columns = b->shape[b->ndim - 1];
    found->row_stride = b->ndim == 2 ? b->strides[0] : 0;
    found->stride = b->strides[b->ndim - 1];
    return 0;
}

/* One letter for every argument: r, an array to read; w, an array to write, or None; n, an integer.
   Arrays are counted apart from integers. After a failure there is nothing to close. */
static int open_arguments(PyObject *const *args, Py_ssize_t count, const char *form, Arguments *found)
{
    int arrays = 0, integers = 0;
    memset(found, 0, sizeof *found);
    if (count != (Py_ssize_t)strlen(form)) {
        PyErr_Format(PyExc_TypeError, "%zd arguments are needed, found %zd", strlen(form), count);
        return -1;
    }
    for (; *form; form++, args++) {
        if (*form == 'n') {
            found->numbers[integers] = PyLong_AsSsize_t(*args);
            if (found->numbers[integers++] == -1 && PyErr_Occurred())
                goto failed;
        } else if (*args == Py_None && *form == 'w')
            arrays++;
        else if (open_ints(*args, &found->ints[arrays++], *form == 'w') < 0)
            goto failed;
    }
    return 0;
failed:
    close_arguments(found);
    return -1;
}

static int has_room(Ints *room, Py_ssize_t rows, Py_ssize_t columns)
{
    if (!room->data || (room->rows >= rows && room->columns >= columns))
        return 1;
    PyErr_Format(PyExc_IndexError, "room for %zd times %zd is needed, found %zd times %zd", rows, columns, room->rows,
                 room->columns);
    return 0;
}

static int is_given(Ints *room)
{
    if (!room->data)
        PyErr_SetString(PyExc_TypeError, "an array to write to is needed, found None");
    return room->data != NULL;
}

static int is_block(BlockArrays *self, int32_t id) { return id >= 0 && id < self->num_blocks; }

static int is_key(BlockArrays *self, int32_t group, int32_t number)
{
    return group >= 0 && group < self->num_groups && number > 0 && number < self->num_numbers;
}

/* One block more or fewer of a kind, where it belongs to a group. */
static void tally(BlockArrays *self, int what, int32_t group, int by)
{
    if (group >= 0 && group < self->num_groups)
        COUNT(self, what, group) += by;
}

static void refuse_block(BlockArrays *self, int32_t id)
{
    PyErr_Format(PyExc_IndexError, "block %d is not of this pool of %zd", id, self->num_blocks);
}

static int are_blocks(BlockArrays *self, Ints *ids)
{
    for (Py_ssize_t i = 0; i < ids->rows; i++)
        for (Py_ssize_t j = 0; j < ids->columns; j++)
            if (!is_block(self, AT(ids, i, j))) {
                refuse_block(self, AT(ids, i, j));
                return 0;
            }
    return 1;
}

static int are_groups(BlockArrays *self, Ints *groups, Py_ssize_t count, int32_t lowest)
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

static int covers(Ints *numbers, Py_ssize_t start, Py_ssize_t end)
{
    if (start >= 0 && end <= numbers->columns)
        return 1;
    PyErr_Format(PyExc_IndexError, "entries [%zd, %zd) are not of %zd", start, end, numbers->columns);
    return 0;
}

/* A number from an argument; a wrong one becomes 0, under which nothing is ever keyed. */
static int32_t number_at(BlockArrays *self, Ints *numbers, Py_ssize_t j)
{
    int32_t number = AT(numbers, 0, j);
    return number >= 0 && number < self->num_numbers ? number : 0;
}

#endif
