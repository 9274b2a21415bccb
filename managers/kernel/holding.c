/* Reference counts: which blocks are held, and what a release frees. */

#include "arrays.h"
#include "passes.h"

PyObject *allocate(BlockArrays *self, PyObject *const *args, Py_ssize_t count)
{
    Arguments a;
    if (open_apart(self, args, count, "vr", &a) < 0)
        return NULL;
    Ints *groups = &a.ints[0], *ids = &a.ints[1];
    Block *blocks = &BLOCK(self, 0);
    int ok = are_groups(self, groups, ids->rows, -1) && are_blocks(self, ids);
    const Ints from = *ids; /* a copy stays in registers */
    for (Py_ssize_t i = 0; ok && i < from.rows; i++) {
        int32_t group = AT(groups, 0, i);
        for (Py_ssize_t j = 0; j < from.columns; j++) {
            Block *block = &blocks[AT(&from, i, j)];
            block->release = 0;
            block->refs = 1;
            block->group = group;
        }
        tally(self, LIVE, group, ids->columns);
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

/* Returns 1, 0 if a free block has no key, or -1, an error. */
static int can_hold(BlockArrays *self, Ints *ids)
{
    const Block *blocks = &BLOCK(self, 0);
    uint32_t most = INT32_MAX - (uint32_t)(ids->rows * ids->columns); /* a block may come as often as there are ids */
    int able = 1;
    for (Py_ssize_t i = 0; i < ids->rows; i++)
        for (Py_ssize_t j = 0; j < ids->columns; j++) {
            int32_t b = AT(ids, i, j);
            if (!is_block(self, b)) {
                refuse_block(self, b);
                return -1;
            }
            if ((uint32_t)blocks[b].refs > most) {
                PyErr_Format(PyExc_OverflowError, "block %d cannot be held: it has %d references", b, blocks[b].refs);
                return -1;
            }
            if (b && !(blocks[b].refs | blocks[b].number))
                able = 0;
        }
    return able;
}

PyObject *hold(BlockArrays *self, PyObject *const *args, Py_ssize_t count)
{
    Arguments a;
    if (open_apart(self, args, count, "rV", &a) < 0)
        return NULL;
    Ints *ids = &a.ints[0], *freed = &a.ints[1];
    int able = has_room(freed, 1, ids->rows * ids->columns) ? can_hold(self, ids) : -1;
    Py_ssize_t found = 0;
    for (Py_ssize_t i = 0; able > 0 && i < ids->rows; i++)
        for (Py_ssize_t j = 0; j < ids->columns; j++) {
            int32_t b = AT(ids, i, j);
            if (b && !BLOCK(self, b).refs++) {
                tally(self, LIVE, BLOCK(self, b).group, 1);
                tally(self, REUSABLE, BLOCK(self, b).group, -1);
                AT(freed, 0, found++) = b;
            }
        }
    close_arguments(&a);
    return able < 0 ? NULL : PyLong_FromSsize_t(able ? found : -1);
}

static void reverse(Ints *stack, Py_ssize_t low, Py_ssize_t end)
{
    for (Py_ssize_t high = end - 1; low < high; low++, high--) {
        int32_t kept = AT(stack, 0, low);
        AT(stack, 0, low) = AT(stack, 0, high);
        AT(stack, 0, high) = kept;
    }
}

/* Where a release puts the blocks that it frees: those with a key into cached, marked with its number, the others onto
   the stack. */
typedef struct {
    Ints *stack, *cached;
    Py_ssize_t height, num_cached;
    int64_t number;
} Release;

static void count_freed(BlockArrays *self, int32_t group, int64_t freed, int64_t keyed)
{
    tally(self, LIVE, group, -freed);
    tally(self, REUSABLE, group, keyed);
}

/* Take one reference from each id of a row. Stops at an id that is not in the pool or not held; returns its column, or
   the number of columns. */
static Py_ssize_t release_row(BlockArrays *self, Ints *ids, Py_ssize_t i, Release *to)
{
    Block *blocks = &BLOCK(self, 0);
    const Ints from = *ids, stack = *to->stack, cached = *to->cached; /* copies stay in registers */
    Py_ssize_t j, height = to->height, num_cached = to->num_cached;
    Py_ssize_t freed_before = height + num_cached, cached_before = num_cached; /* where the current group began */
    int32_t group = -1;
    for (j = 0; j < from.columns; j++) {
        int32_t b = AT(&from, i, j);
        if (!b)
            continue;
        if (!is_block(self, b) || blocks[b].refs <= 0 || height == stack.columns)
            break;
        if (--blocks[b].refs)
            continue;
        if (blocks[b].group != group) {
            count_freed(self, group, height + num_cached - freed_before, num_cached - cached_before);
            group = blocks[b].group;
            freed_before = height + num_cached;
            cached_before = num_cached;
        }
        if (blocks[b].number) {
            blocks[b].release = to->number;
            AT(&cached, 0, num_cached++) = b;
        } else
            AT(&stack, 0, height++) = b;
    }
    count_freed(self, group, height + num_cached - freed_before, num_cached - cached_before);
    reverse(to->stack, to->height, height);
    to->height = height;
    to->num_cached = num_cached;
    return j;
}

/* Undo release_row for the rows before row i, and for row i before column j. release is 0 in a held block. */
static void undo_release(BlockArrays *self, Ints *ids, Py_ssize_t i, Py_ssize_t j)
{
    for (; i >= 0; i--, j = ids->columns)
        while (j-- > 0) {
            int32_t b = AT(ids, i, j);
            if (!b || BLOCK(self, b).refs++)
                continue;
            count_freed(self, BLOCK(self, b).group, -1, BLOCK(self, b).number ? -1 : 0);
            BLOCK(self, b).release = 0;
        }
}

PyObject *release(BlockArrays *self, PyObject *const *args, Py_ssize_t count)
{
    Arguments a;
    if (open_apart(self, args, count, "rVnVn", &a) < 0)
        return NULL;
    Ints *ids = &a.ints[0];
    Py_ssize_t before = a.numbers[0];
    Release to = {&a.ints[1], &a.ints[2], before, 0, a.numbers[1]};
    /* A free block lies on the stack once, so a stack with room for all blocks is large enough. */
    int ok = has_room(to.stack, 1, self->num_blocks) && has_room(to.cached, 1, ids->rows * ids->columns);
    if (ok && (before < 0 || before > to.stack->columns)) {
        PyErr_Format(PyExc_ValueError, "a stack of %zd is not %zd high", to.stack->columns, before);
        ok = 0;
    }
    for (Py_ssize_t i = 0; ok && to.height >= 0 && i < ids->rows; i++) {
        Py_ssize_t done = release_row(self, ids, i, &to);
        if (done < ids->columns) {
            undo_release(self, ids, i, done);
            to.height = -1;
            to.num_cached = 0;
        }
    }
    close_arguments(&a);
    return ok ? Py_BuildValue("nn", to.height, to.num_cached) : NULL;
}
