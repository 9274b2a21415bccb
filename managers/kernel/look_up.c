/* Look-ups: entry j of a prompt is cached if every group has a block for numbers[j]. */

#include "arrays.h"
#include "passes.h"

static int is_cached(BlockArrays *self, Ints *groups, Ints *numbers, Py_ssize_t j)
{
    int32_t number = number_at(self, numbers, j);
    self->probes++;
    for (Py_ssize_t i = 0; i < groups->columns; i++)
        if (!INDEX(self, AT(groups, 0, i), number))
            return 0;
    return 1;
}

typedef Py_ssize_t (*Search)(BlockArrays *, Ints *groups, Ints *numbers, Py_ssize_t, Py_ssize_t);

static Py_ssize_t find_first_missing(BlockArrays *self, Ints *groups, Ints *numbers, Py_ssize_t start, Py_ssize_t end)
{
    while (start < end && is_cached(self, groups, numbers, start))
        start++;
    return start < end ? start : end;
}

static Py_ssize_t find_last_missing(BlockArrays *self, Ints *groups, Ints *numbers, Py_ssize_t start, Py_ssize_t end)
{
    while (end > start && is_cached(self, groups, numbers, end - 1))
        end--;
    return end > start ? end - 1 : -1;
}

static Py_ssize_t find_last_present(BlockArrays *self, Ints *groups, Ints *numbers, Py_ssize_t step, Py_ssize_t end)
{
    Py_ssize_t j = end - end % step - 1;
    while (j >= 0 && !is_cached(self, groups, numbers, j))
        j -= step;
    return j < 0 ? -1 : j;
}

/* Examines the lowest entry of a run first: if it is missing, it rules out every run that contains it. */
static Py_ssize_t find_last_run(BlockArrays *self, Ints *groups, Ints *numbers, Py_ssize_t length, Py_ssize_t end)
{
    Py_ssize_t known = end; /* entries [known, end) are cached */
    while (end >= length) {
        Py_ssize_t j = end - length;
        while (j < known && is_cached(self, groups, numbers, j))
            j++;
        if (j == known)
            return end;
        known = end - length;
        end = j;
    }
    return -1;
}

static PyObject *answer(BlockArrays *self, PyObject *const *args, Py_ssize_t count, Search search, int first_is_step)
{
    Arguments a;
    if (open_arguments(args, count, "vvnn", &a) < 0)
        return NULL;
    Py_ssize_t first = a.numbers[0], end = a.numbers[1];
    int ok = are_groups(self, &a.ints[0], 0, 0) && covers(&a.ints[1], first_is_step ? 0 : first, end);
    if (ok && (end < 0 || (first_is_step && first < 1))) {
        PyErr_Format(PyExc_ValueError, "a length of at least 1 and an end of at least 0 are needed, found %zd, %zd",
                     first, end);
        ok = 0;
    }
    Py_ssize_t found = ok ? search(self, &a.ints[0], &a.ints[1], first, end) : 0;
    close_arguments(&a);
    return ok ? PyLong_FromSsize_t(found) : NULL;
}

PyObject *first_missing(BlockArrays *self, PyObject *const *args, Py_ssize_t count)
{
    return answer(self, args, count, find_first_missing, 0);
}

PyObject *last_missing(BlockArrays *self, PyObject *const *args, Py_ssize_t count)
{
    return answer(self, args, count, find_last_missing, 0);
}

PyObject *last_present(BlockArrays *self, PyObject *const *args, Py_ssize_t count)
{
    return answer(self, args, count, find_last_present, 1);
}

PyObject *last_run(BlockArrays *self, PyObject *const *args, Py_ssize_t count)
{
    return answer(self, args, count, find_last_run, 1);
}

PyObject *gather(BlockArrays *self, PyObject *const *args, Py_ssize_t count)
{
    Arguments a;
    if (open_arguments(args, count, "vvR", &a) < 0)
        return NULL;
    Ints *groups = &a.ints[0], *numbers = &a.ints[1], *found = &a.ints[2];
    int ok = are_groups(self, groups, found->rows, 0) && covers(numbers, 0, found->columns);
    for (Py_ssize_t i = 0; ok && i < found->rows; i++)
        for (Py_ssize_t j = 0; j < found->columns; j++)
            AT(found, i, j) = INDEX(self, AT(groups, 0, i), number_at(self, numbers, j));
    close_arguments(&a);
    return ok ? Py_NewRef(Py_None) : NULL;
}
