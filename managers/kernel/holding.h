/* Who holds each block. */

#include "arrays.h"

static PyObject *hand_out(BlockArrays *self, PyObject *const *args, Py_ssize_t count)
{
    Arguments a;
    if (open_arguments(args, count, "rr", &a) < 0)
        return NULL;
    Ints *groups = &a.ints[0], *ids = &a.ints[1];
    int ok = are_groups(self, groups, ids->rows, -1) && are_blocks(self, ids);
    for (Py_ssize_t i = 0; ok && i < ids->rows; i++) {
        int32_t group = AT(groups, 0, i);
        for (Py_ssize_t j = 0; j < ids->columns; j++) {
            BLOCK(self, AT(ids, i, j)).refs = 1;
            BLOCK(self, AT(ids, i, j)).group = group;
            BLOCK(self, AT(ids, i, j)).release = 0;
        }
        if (group >= 0)
            COUNT(self, LIVE, group) += ids->columns;
    }
    close_arguments(&a);
    return ok ? Py_NewRef(Py_None) : NULL;
}

static PyObject *count_free(BlockArrays *self, PyObject *const *args, Py_ssize_t count)
{
    Arguments a;
    Py_ssize_t found = 0;
    if (open_arguments(args, count, "r", &a) < 0)
        return NULL;
    Ints *ids = &a.ints[0];
    int ok = are_blocks(self, ids);
    for (Py_ssize_t i = 0; ok && i < ids->rows; i++)
        for (Py_ssize_t j = 0; j < ids->columns; j++)
            found += AT(ids, i, j) && !BLOCK(self, AT(ids, i, j)).refs;
    close_arguments(&a);
    return ok ? PyLong_FromSsize_t(found) : NULL;
}

/* Free blocks go to freed; -1, all as before, where a free one has no key. */
static Py_ssize_t take_hold(BlockArrays *self, Ints *ids, Ints *freed)
{
    Py_ssize_t found = 0;
    for (Py_ssize_t i = 0; i < ids->rows; i++)
        for (Py_ssize_t j = 0; j < ids->columns; j++) {
            int32_t b = AT(ids, i, j);
            if (b && !BLOCK(self, b).refs && !BLOCK(self, b).number)
                return -1;
        }
    for (Py_ssize_t i = 0; i < ids->rows; i++)
        for (Py_ssize_t j = 0; j < ids->columns; j++) {
            int32_t b = AT(ids, i, j);
            if (b && !BLOCK(self, b).refs++) {
                tally(self, LIVE, BLOCK(self, b).group, 1);
                tally(self, REUSABLE, BLOCK(self, b).group, -1);
                AT(freed, 0, found++) = b;
            }
        }
    return found;
}

static PyObject *hold(BlockArrays *self, PyObject *const *args, Py_ssize_t count)
{
    Arguments a;
    if (open_arguments(args, count, "rw", &a) < 0)
        return NULL;
    Ints *ids = &a.ints[0], *freed = &a.ints[1];
    int ok = are_blocks(self, ids) && is_given(freed) && has_room(freed, 1, ids->rows * ids->columns);
    Py_ssize_t found = ok ? take_hold(self, ids, freed) : 0;
    close_arguments(&a);
    return ok ? PyLong_FromSsize_t(found) : NULL;
}

static void turn_round(Ints *stack, Py_ssize_t low, Py_ssize_t end)
{
    for (Py_ssize_t high = end - 1; low < high; low++, high--) {
        int32_t kept = AT(stack, 0, low);
        AT(stack, 0, low) = AT(stack, 0, high);
        AT(stack, 0, high) = kept;
    }
}

/* One reference less to each id; those that are free now go to the cached ones, or row by row onto the stack, so that
   the first of a row lies on top. -1, all as before, where some id is no block or is held less often than it comes. */
static int let_go(BlockArrays *self, Ints *ids, Ints *stack, Py_ssize_t *height, Ints *cached, Py_ssize_t *num_cached)
{
    for (Py_ssize_t i = 0; i < ids->rows; i++) {
        Py_ssize_t bottom = *height;
        for (Py_ssize_t j = 0; j < ids->columns; j++) {
            int32_t b = AT(ids, i, j);
            if (b == 0)
                continue;
            if (!is_block(self, b) || BLOCK(self, b).refs <= 0 || *height == stack->columns) {
                for (Py_ssize_t undo = i * ids->columns + j - 1; undo >= 0; undo--)
                    BLOCK(self, AT(ids, undo / ids->columns, undo % ids->columns)).refs++;
                BLOCK(self, 0).refs = 0;
                return -1;
            }
            if (--BLOCK(self, b).refs)
                continue;
            if (BLOCK(self, b).number)
                AT(cached, 0, (*num_cached)++) = b;
            else
                AT(stack, 0, (*height)++) = b;
        }
        turn_round(stack, bottom, *height);
    }
    return 0;
}

/* These have been freed by the release of this number, and keep their keys. */
static void note_release(BlockArrays *self, Ints *cached, Py_ssize_t count, int64_t number)
{
    for (Py_ssize_t j = 0, end; j < count; j = end) {
        int32_t group = BLOCK(self, AT(cached, 0, j)).group;
        for (end = j; end < count && BLOCK(self, AT(cached, 0, end)).group == group; end++)
            BLOCK(self, AT(cached, 0, end)).release = number;
        tally(self, LIVE, group, (int)(j - end));
        tally(self, REUSABLE, group, (int)(end - j));
    }
}

static PyObject *release(BlockArrays *self, PyObject *const *args, Py_ssize_t count)
{
    Arguments a;
    if (open_arguments(args, count, "rwnwn", &a) < 0)
        return NULL;
    Ints *ids = &a.ints[0], *stack = &a.ints[1], *cached = &a.ints[2];
    Py_ssize_t before = a.numbers[0], height = before, num_cached = 0;
    /* A free block lies on the stack once, so that a stack of all blocks has room for all. */
    int ok = is_given(stack) && is_given(cached) && has_room(stack, 1, self->num_blocks) &&
             has_room(cached, 1, ids->rows * ids->columns);
    if (ok && (before < 0 || before > stack->columns)) {
        PyErr_Format(PyExc_ValueError, "a stack of %zd is not %zd high", stack->columns, before);
        ok = 0;
    }
    if (ok && let_go(self, ids, stack, &height, cached, &num_cached) < 0)
        height = -1;
    if (ok && height >= 0)
        note_release(self, cached, num_cached, a.numbers[1]);
    for (Py_ssize_t j = before; ok && j < height; j++) {
        tally(self, LIVE, BLOCK(self, AT(stack, 0, j)).group, -1);
    }
    close_arguments(&a);
    return ok ? Py_BuildValue("nn", height, num_cached) : NULL;
}
