/* What observers are given in compact form (stretches of numbers, one row for equal rows), and the marks they keep. */

#include "arguments.h"
#include "passes.h"

static int add_stretch(PyObject *found, int32_t run, int32_t first, int32_t last)
{
    PyObject *stretch = Py_BuildValue("(iii)", run, first, last);
    int failed = !stretch || PyList_Append(found, stretch) < 0;
    Py_XDECREF(stretch);
    return failed ? -1 : 0;
}

static PyObject *find_stretches(Ints *run_of, Ints *numbers)
{
    PyObject *found = PyList_New(0);
    int32_t run = 0, first = 0, last = 0, step = 0;
    for (Py_ssize_t j = 0; found && j < numbers->columns; j++) {
        int32_t number = AT(numbers, 0, j);
        if (number < 0 || number >= run_of->columns) {
            PyErr_Format(PyExc_IndexError, "number %d is not in [0, %zd)", number, run_of->columns);
            Py_CLEAR(found);
            break;
        }
        int32_t its_run = AT(run_of, 0, number), by = number - last;
        if (j && its_run == run && (step ? by == step : by == 1 || by == -1)) {
            step = by;
            last = number;
            continue;
        }
        if (j && add_stretch(found, run, first, last) < 0)
            Py_CLEAR(found);
        run = its_run;
        first = last = number;
        step = 0;
    }
    if (found && numbers->columns && add_stretch(found, run, first, last) < 0)
        Py_CLEAR(found);
    return found;
}

PyObject *stretches(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Arguments a;
    if (open_arguments(args, count, "vv", &a) < 0)
        return NULL;
    PyObject *found = find_stretches(&a.ints[0], &a.ints[1]);
    close_arguments(&a);
    return found;
}

PyObject *merge_equal_rows(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Arguments a;
    Py_ssize_t kept = 0;
    if (open_arguments(args, count, "R", &a) < 0)
        return NULL;
    Ints *rows = &a.ints[0];
    int are_equal = 1;
    for (Py_ssize_t i = 1; are_equal && i < rows->rows; i++)
        for (Py_ssize_t j = 0; are_equal && j < rows->columns; j++)
            are_equal = AT(rows, i, j) == AT(rows, 0, j);
    for (Py_ssize_t j = 0; are_equal && rows->rows && j < rows->columns; j++)
        if (AT(rows, 0, j))
            AT(rows, 0, kept++) = AT(rows, 0, j);
    close_arguments(&a);
    return PyLong_FromSsize_t(are_equal ? kept : -1);
}

static int are_places(Ints *places, Py_ssize_t limit, const char *what)
{
    for (Py_ssize_t j = 0; j < places->columns; j++)
        if (AT(places, 0, j) < 0 || AT(places, 0, j) >= limit) {
            PyErr_Format(PyExc_IndexError, "%s %d is not in [0, %zd)", what, AT(places, 0, j), limit);
            return 0;
        }
    return 1;
}

static int can_mark(Ints *marks, Ints *rows, Ints *columns, Py_ssize_t value, int pairwise)
{
    if (value < INT32_MIN || value > INT32_MAX) {
        PyErr_Format(PyExc_OverflowError, "a mark of 32 bits is needed, found %zd", value);
        return 0;
    }
    if (pairwise && rows->columns != columns->columns) {
        PyErr_Format(PyExc_IndexError, "%zd columns need as many rows, found %zd", columns->columns, rows->columns);
        return 0;
    }
    return are_places(rows, marks->rows, "row") && are_places(columns, marks->columns, "column");
}

/* Write a value where each row crosses each column, or, pairwise, at each row and the column of the same place. */
static PyObject *mark(PyObject *const *args, Py_ssize_t count, int pairwise)
{
    Arguments a;
    if (open_arguments(args, count, "Rvvn", &a) < 0)
        return NULL;
    Ints *marks = &a.ints[0], *rows = &a.ints[1], *columns = &a.ints[2];
    int ok = can_mark(marks, rows, columns, a.numbers[0], pairwise);
    for (Py_ssize_t i = 0; ok && i < rows->columns; i++) {
        Py_ssize_t from = pairwise ? i : 0, to = pairwise ? i + 1 : columns->columns;
        for (Py_ssize_t j = from; j < to; j++)
            AT(marks, AT(rows, 0, i), AT(columns, 0, j)) = (int32_t)a.numbers[0];
    }
    close_arguments(&a);
    return ok ? Py_NewRef(Py_None) : NULL;
}

PyObject *mark_all(PyObject *module, PyObject *const *args, Py_ssize_t count) { return mark(args, count, 0); }

PyObject *mark_each(PyObject *module, PyObject *const *args, Py_ssize_t count) { return mark(args, count, 1); }
