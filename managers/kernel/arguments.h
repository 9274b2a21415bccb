/* How a function of the kernel reads its arguments. Whatever a caller passes, what is opened here can be read and
   written without leaving its memory. */

#ifndef KVHYBRID_ARGUMENTS_H
#define KVHYBRID_ARGUMENTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

/* An int32 array of one or two dimensions and any stride, with at most INT32_MAX entries. */
typedef struct {
    Py_buffer buffer;
    char *data;
    Py_ssize_t rows, columns, row_stride, stride;
    uintptr_t low, high; /* its entries lie in [low, high); both are 0 if it has none */
} Ints;

#define AT(a, i, j) (*(int32_t *)((a)->data + (i) * (a)->row_stride + (j) * (a)->stride))

enum { MAX_ARGUMENTS = 4 };

/* Arrays are numbered apart from integers. */
typedef struct {
    int num_arrays;
    Ints ints[MAX_ARGUMENTS];
    Py_ssize_t numbers[MAX_ARGUMENTS];
} Arguments;

/* Whether an optional array is there. */
static inline int is_given(const Ints *array) { return array->data != NULL; }

static inline void close_arguments(Arguments *found)
{
    for (int k = 0; k < found->num_arrays; k++)
        if (found->ints[k].buffer.obj)
            PyBuffer_Release(&found->ints[k].buffer);
}

static inline int is_aligned(const Ints *array)
{
    return (((uintptr_t)array->data | (uintptr_t)array->row_stride | (uintptr_t)array->stride) & 3) == 0;
}

static inline int is_indexable(const Ints *array)
{
    return array->rows <= INT32_MAX && array->columns <= INT32_MAX &&
           (int64_t)array->rows * array->columns <= INT32_MAX;
}

static inline void set_bounds(Ints *array)
{
    array->low = array->high = 0;
    if (!array->rows || !array->columns)
        return;
    Py_ssize_t down = (array->rows - 1) * array->row_stride, across = (array->columns - 1) * array->stride;
    array->low = (uintptr_t)(array->data + (down < 0 ? down : 0) + (across < 0 ? across : 0));
    array->high = (uintptr_t)(array->data + (down > 0 ? down : 0) + (across > 0 ? across : 0)) + sizeof(int32_t);
}

/* Open object as an array of at most max_dimensions. After a failure the buffer may still have to be released. */
static inline int open_ints(PyObject *object, Ints *found, int writable, int max_dimensions)
{
    Py_buffer *b = &found->buffer;
    if (PyObject_GetBuffer(object, b, writable ? PyBUF_STRIDED : PyBUF_STRIDED_RO) < 0)
        return -1;
    if (b->itemsize != sizeof(int32_t) || b->ndim < 1 || b->ndim > max_dimensions) {
        PyErr_Format(PyExc_TypeError, "an int32 array of %s is needed, found %d dimensions and items of %zd bytes",
                     max_dimensions == 1 ? "one dimension" : "one or two dimensions", b->ndim, b->itemsize);
        return -1;
    }
    found->data = b->buf;
    found->rows = b->ndim == 2 ? b->shape[0] : 1;
    found->columns = b->shape[b->ndim - 1];
    found->row_stride = b->ndim == 2 ? b->strides[0] : 0;
    found->stride = b->strides[b->ndim - 1];
    if (!is_aligned(found)) {
        PyErr_SetString(PyExc_TypeError, "an int32 array must be aligned to 4 bytes");
        return -1;
    }
    if (!is_indexable(found)) {
        PyErr_Format(PyExc_ValueError, "an array has at most %d entries, found %zd times %zd", INT32_MAX, found->rows,
                     found->columns);
        return -1;
    }
    set_bounds(found);
    return 0;
}

static inline int overlaps(const Ints *array, uintptr_t low, uintptr_t high)
{
    return array->low < high && low < array->high;
}

/* Entries are checked before the first write, so a write must not change them. */
static inline int is_apart(const Arguments *found, int written)
{
    const Ints *array = &found->ints[written];
    for (int k = 0; k < found->num_arrays; k++)
        if (k != written && overlaps(&found->ints[k], array->low, array->high)) {
            PyErr_SetString(PyExc_ValueError, "an array to write to shares memory with another argument");
            return 0;
        }
    return 1;
}

/* One letter for every argument: n, an integer; v, an array of one dimension; r, an array of one dimension, or of two
   with a row for each group. A capital letter is an array to write to; O, one like R, or None. After a failure there
   is nothing to close. */
static inline int open_arguments(PyObject *const *args, Py_ssize_t count, const char *form, Arguments *found)
{
    int integers = 0, written[MAX_ARGUMENTS], num_written = 0;
    found->num_arrays = 0;
    if (count != (Py_ssize_t)strlen(form)) {
        PyErr_Format(PyExc_TypeError, "%zd arguments are needed, found %zd", strlen(form), count);
        return -1;
    }
    for (; *form; form++, args++) {
        if (*form == 'n') {
            found->numbers[integers] = PyLong_AsSsize_t(*args);
            if (found->numbers[integers++] == -1 && PyErr_Occurred())
                goto failed;
            continue;
        }
        Ints *array = &found->ints[found->num_arrays++];
        array->buffer.obj = NULL;
        if (*form == 'O' && *args == Py_None) {
            array->data = NULL;
            array->low = array->high = 0;
            continue;
        }
        int writable = *form < 'a';
        if (open_ints(*args, array, writable, *form == 'v' || *form == 'V' ? 1 : 2) < 0)
            goto failed;
        if (writable)
            written[num_written++] = found->num_arrays - 1;
    }
    for (int k = 0; k < num_written; k++)
        if (!is_apart(found, written[k]))
            goto failed;
    return 0;
failed:
    close_arguments(found);
    return -1;
}

/* Whether room, if given, has at least this number of rows and columns. */
static inline int has_room(Ints *room, Py_ssize_t rows, Py_ssize_t columns)
{
    if (!is_given(room) || (room->rows >= rows && room->columns >= columns))
        return 1;
    PyErr_Format(PyExc_IndexError, "room for %zd times %zd is needed, found %zd times %zd", rows, columns, room->rows,
                 room->columns);
    return 0;
}

static inline int covers(Ints *numbers, Py_ssize_t start, Py_ssize_t end)
{
    if (start >= 0 && end <= numbers->columns)
        return 1;
    PyErr_Format(PyExc_IndexError, "entries [%zd, %zd) are not in [0, %zd)", start, end, numbers->columns);
    return 0;
}

#endif
