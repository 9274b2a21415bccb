/* How a function reads its arguments. */

#ifndef KVHYBRID_ARGUMENTS_H
#define KVHYBRID_ARGUMENTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

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

static inline void close_arguments(Arguments *found)
{
    for (int k = 0; k < MOST_ARGUMENTS; k++)
        if (found->ints[k].buffer.obj)
            PyBuffer_Release(&found->ints[k].buffer);
}

static inline int open_ints(PyObject *object, Ints *found, int writable)
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
static inline int open_arguments(PyObject *const *args, Py_ssize_t count, const char *form, Arguments *found)
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

static inline int has_room(Ints *room, Py_ssize_t rows, Py_ssize_t columns)
{
    if (!room->data || (room->rows >= rows && room->columns >= columns))
        return 1;
    PyErr_Format(PyExc_IndexError, "room for %zd times %zd is needed, found %zd times %zd", rows, columns, room->rows,
                 room->columns);
    return 0;
}

static inline int is_given(Ints *room)
{
    if (!room->data)
        PyErr_SetString(PyExc_TypeError, "an array to write to is needed, found None");
    return room->data != NULL;
}

static inline int covers(Ints *numbers, Py_ssize_t start, Py_ssize_t end)
{
    if (start >= 0 && end <= numbers->columns)
        return 1;
    PyErr_Format(PyExc_IndexError, "entries [%zd, %zd) are not of %zd", start, end, numbers->columns);
    return 0;
}

#endif
