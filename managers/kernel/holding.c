/* Who holds each block. */

#include "arrays.h"
#include "passes.h"

PyObject *hand_out(BlockArrays *self, PyObject *const *args, Py_ssize_t count)
{
    Arguments a;
    if (open_arguments(args, count, "rr", &a) < 0)
        return NULL;
    Ints *groups = &a.ints[0], *ids = &a.ints[1];
    Block *blocks = &BLOCK(self, 0);
    int ok = are_groups(self, groups, ids->rows, -1) && are_blocks(self, ids);
    for (Py_ssize_t i = 0; ok && i < ids->rows; i++) {
        int32_t group = AT(groups, 0, i);
        for (Py_ssize_t j = 0; j < ids->columns; j++) {
            Block *block = &blocks[AT(ids, i, j)];
            block->release = 0;
            block->refs = 1;
            block->group = group;
        }
        tally(self, LIVE, group, (int)ids->columns);
    }
    close_arguments(&a);
    return ok ? Py_NewRef(Py_None) : NULL;
}

PyObject *count_free(BlockArrays *self, PyObject *const *args, Py_ssize_t count)
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

PyObject *hold(BlockArrays *self, PyObject *const *args, Py_ssize_t count)
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

/* What a release frees: blocks that have a key go to the cached ones, marked with its number, the others onto the
   stack. */
typedef struct {
    Ints *stack, *cached;
    Py_ssize_t height, num_cached;
    int64_t number;
} Release;

static void count_freed(BlockArrays *self, int32_t group, int freed, int keyed)
{
    tally(self, LIVE, group, -freed);
    tally(self, REUSABLE, group, keyed);
}

/* One reference less to each id of a row. Stops at one that is no block or is not held, and returns its place. */
static Py_ssize_t let_go(BlockArrays *self, Ints *ids, Py_ssize_t i, Release *to)
{
    Block *blocks = &BLOCK(self, 0);
    Py_ssize_t j, height = to->height, num_cached = to->num_cached;
    int32_t group = -1;
    int freed = 0, keyed = 0;
    for (j = 0; j < ids->columns; j++) {
        int32_t b = AT(ids, i, j);
        if (!b)
            continue;
        if (!is_block(self, b) || blocks[b].refs <= 0 || height == to->stack->columns)
            break;
        if (--blocks[b].refs)
            continue;
        if (blocks[b].group != group) {
            count_freed(self, group, freed, keyed);
            group = blocks[b].group;
            freed = keyed = 0;
        }
        freed++;
        if (blocks[b].number) {
            blocks[b].release = to->number;
            AT(to->cached, 0, num_cached++) = b;
            keyed++;
        } else
            AT(to->stack, 0, height++) = b;
    }
    count_freed(self, group, freed, keyed);
    turn_round(to->stack, to->height, height);
    to->height = height;
    to->num_cached = num_cached;
    return j;
}

/* Hold again what let_go went through in rows up to this one, and there before column j. */
static void hold_again(BlockArrays *self, Ints *ids, Py_ssize_t i, Py_ssize_t j)
{
    for (; i >= 0; i--, j = ids->columns)
        while (j-- > 0) {
            Block *block = &BLOCK(self, AT(ids, i, j));
            if (!AT(ids, i, j) || block->refs++)
                continue;
            count_freed(self, block->group, -1, block->number ? -1 : 0);
            block->release = 0;
        }
}

PyObject *release(BlockArrays *self, PyObject *const *args, Py_ssize_t count)
{
    Arguments a;
    if (open_arguments(args, count, "rwnwn", &a) < 0)
        return NULL;
    Ints *ids = &a.ints[0];
    Py_ssize_t before = a.numbers[0];
    Release to = {&a.ints[1], &a.ints[2], before, 0, a.numbers[1]};
    /* A free block lies on the stack once, so that a stack of all blocks has room for all. */
    int ok = is_given(to.stack) && is_given(to.cached) && has_room(to.stack, 1, self->num_blocks) &&
             has_room(to.cached, 1, ids->rows * ids->columns);
    if (ok && (before < 0 || before > to.stack->columns)) {
        PyErr_Format(PyExc_ValueError, "a stack of %zd is not %zd high", to.stack->columns, before);
        ok = 0;
    }
    for (Py_ssize_t i = 0; ok && to.height >= 0 && i < ids->rows; i++) {
        Py_ssize_t done = let_go(self, ids, i, &to);
        if (done < ids->columns) {
            hold_again(self, ids, i, done);
            to.height = -1;
            to.num_cached = 0;
        }
    }
    close_arguments(&a);
    return ok ? Py_BuildValue("nn", to.height, to.num_cached) : NULL;
}
