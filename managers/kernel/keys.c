/* The keys of blocks. The blocks of one key form a list, whose first block is in the index and serves look-ups. behind is
   the next block, ahead the previous one, 0 at an end; but the first block's ahead is the last block of the list. A block
   that is alone has 0 in both. */

#include "arrays.h"
#include "passes.h"

static void refuse_record(BlockArrays *self, int32_t b)
{
    const Block *block = &BLOCK(self, b);
    PyErr_Format(PyExc_IndexError, "block %d has number %d of group %d and neighbours %d and %d: not all exist", b,
                 block->number, block->group, block->ahead, block->behind);
}

static void refuse_entry(BlockArrays *self, int32_t group, int32_t number)
{
    PyErr_Format(PyExc_IndexError, "the index has block %d for number %d of group %d, found a pool of %zd",
                 INDEX(self, group, number), number, group, self->num_blocks);
}

static void append_to_list(BlockArrays *self, int32_t first, int32_t b)
{
    int32_t last = BLOCK(self, first).ahead ? BLOCK(self, first).ahead : first;
    BLOCK(self, last).behind = b;
    BLOCK(self, b).ahead = last;
    BLOCK(self, first).ahead = b;
}

/* Returns whether the key is gone, since b was the only block of its list. firsts are those of b's group. */
static int remove_from_list(BlockArrays *self, int32_t *firsts, int32_t number, int32_t b)
{
    int32_t before = BLOCK(self, b).ahead, after = BLOCK(self, b).behind;
    if (!(before | after)) { /* the usual case, which reads no other record */
        firsts[number] = 0;
        return 1;
    }
    int32_t first = firsts[number];
    BLOCK(self, b).ahead = BLOCK(self, b).behind = 0;
    if (b == first) {
        firsts[number] = after;
        if (after)
            BLOCK(self, after).ahead = before == after ? 0 : before;
        return !after;
    }
    BLOCK(self, before).behind = after;
    if (after)
        BLOCK(self, after).ahead = before;
    else
        BLOCK(self, first).ahead = before == first ? 0 : before;
    return 0;
}

static int can_follow(BlockArrays *self, int32_t first, int32_t group, int32_t number)
{
    if (!is_block(self, first))
        refuse_entry(self, group, number);
    else if (!is_block(self, BLOCK(self, first).ahead))
        refuse_record(self, first);
    else
        return 1;
    return 0;
}

/* Returns 1, 0 if some block cannot be keyed here, or -1, an error. */
static int can_register(BlockArrays *self, Ints *groups, Ints *ids, Ints *numbers)
{
    const Block *blocks = &BLOCK(self, 0);
    int able = 1;
    for (Py_ssize_t i = 0; i < ids->rows; i++) {
        const int32_t *firsts = &INDEX(self, AT(groups, 0, i), 0);
        for (Py_ssize_t j = 0; j < ids->columns; j++) {
            int32_t b = AT(ids, i, j), number = number_at(self, numbers, j), first = firsts[number];
            if (!is_block(self, b)) {
                refuse_block(self, b);
                return -1;
            }
            if (!b)
                continue;
            if (first && !can_follow(self, first, AT(groups, 0, i), number))
                return -1;
            if (!number || (first && blocks[first].irregular))
                able = 0;
            if (blocks[b].number | blocks[b].ahead) { /* together, since they are 0 in every block without a key */
                if (!is_block(self, blocks[b].ahead)) {
                    refuse_record(self, b);
                    return -1;
                }
                able = able && !blocks[b].number;
            }
        }
    }
    return able;
}

static void move_to(BlockArrays *self, int32_t b, int32_t group)
{
    if (BLOCK(self, b).refs) {
        tally(self, LIVE, group, 1);
        tally(self, LIVE, BLOCK(self, b).group, -1);
    }
    BLOCK(self, b).group = group;
}

/* Key a row of blocks, all of which can be registered. */
static void register_row(BlockArrays *self, int32_t group, Ints *ids, Py_ssize_t i, Ints *numbers, Ints *stored)
{
    Block *blocks = &BLOCK(self, 0);
    int32_t *firsts = &INDEX(self, group, 0);
    int64_t cached = 0, reusable = 0;
    for (Py_ssize_t j = 0; j < ids->columns; j++) {
        int32_t b = AT(ids, i, j), number = number_at(self, numbers, j), first = firsts[number];
        if (is_given(stored))
            AT(stored, i, j) = b && !first ? number : 0;
        if (!b)
            continue;
        if (blocks[b].group != group)
            move_to(self, b, group);
        blocks[b].number = number;
        cached++;
        reusable += !blocks[b].refs;
        if (first)
            append_to_list(self, first, b);
        else
            firsts[number] = b;
    }
    COUNT(self, CACHED, group) += cached;
    COUNT(self, REUSABLE, group) += reusable;
}

PyObject *register_rows(BlockArrays *self, PyObject *const *args, Py_ssize_t count)
{
    Arguments a;
    if (open_apart(self, args, count, "vrvO", &a) < 0)
        return NULL;
    Ints *groups = &a.ints[0], *ids = &a.ints[1], *numbers = &a.ints[2], *stored = &a.ints[3];
    int ok = are_groups(self, groups, ids->rows, 0) && covers(numbers, 0, ids->columns) &&
             has_room(stored, ids->rows, ids->columns);
    int able = ok ? can_register(self, groups, ids, numbers) : -1;
    for (Py_ssize_t i = 0; able > 0 && i < ids->rows; i++)
        register_row(self, AT(groups, 0, i), ids, i, numbers, stored);
    close_arguments(&a);
    return able < 0 ? NULL : PyBool_FromLong(able);
}

/* Blocks of one group that have lost their keys, and how many of them are free. */
typedef struct {
    int32_t group;
    int64_t cached, reusable;
} Losses;

static void count_losses(BlockArrays *self, Losses *losses, int for_reuse)
{
    if (!losses->cached)
        return;
    COUNT(self, CACHED, losses->group) -= losses->cached;
    COUNT(self, REUSABLE, losses->group) -= losses->reusable;
    COUNT(self, EVICTIONS, losses->group) += for_reuse ? losses->cached : 0;
    losses->cached = losses->reusable = 0;
}

static int is_in_list(BlockArrays *self, int32_t b)
{
    const Block *block = &BLOCK(self, b);
    if (!is_block(self, block->ahead) || !is_block(self, block->behind))
        refuse_record(self, b);
    else if (!is_block(self, INDEX(self, block->group, block->number)))
        refuse_entry(self, block->group, block->number);
    else
        return 1;
    return 0;
}

/* Returns 0, -1 if one of ids is irregular, or -2, an error. */
static int can_forget(BlockArrays *self, Ints *ids)
{
    const Block *blocks = &BLOCK(self, 0);
    int32_t irregular = 0, linked = 0;
    for (Py_ssize_t j = 0; j < ids->columns; j++) {
        int32_t b = AT(ids, 0, j);
        if (!is_block(self, b)) {
            refuse_block(self, b);
            return -2;
        }
        const Block *block = &blocks[b];
        irregular |= block->irregular;
        if (!block->number)
            continue;
        if (!is_key(self, block->group, block->number)) {
            refuse_record(self, b);
            return -2;
        }
        linked |= block->ahead | block->behind;
    }
    /* Where one is linked, all are checked: removing it can link one that is alone. */
    for (Py_ssize_t j = 0; linked && j < ids->columns; j++)
        if (blocks[AT(ids, 0, j)].number && !is_in_list(self, AT(ids, 0, j)))
            return -2;
    return irregular ? -1 : 0;
}

/* Returns how many keys are gone with the keys of ids. */
static Py_ssize_t forget_all(BlockArrays *self, Ints *ids, Ints *gone, int for_reuse)
{
    Block *blocks = &BLOCK(self, 0);
    int32_t *firsts = &INDEX(self, 0, 0);
    Losses losses = {0};
    Py_ssize_t found = 0;
    for (Py_ssize_t j = 0; j < ids->columns; j++) {
        int32_t b = AT(ids, 0, j), number = blocks[b].number;
        Block *block = &blocks[b];
        if (!number)
            continue;
        if (block->group != losses.group) {
            count_losses(self, &losses, for_reuse);
            losses.group = block->group;
            firsts = &INDEX(self, losses.group, 0);
        }
        if (remove_from_list(self, firsts, number, b) && is_given(gone)) {
            AT(gone, 0, found) = losses.group;
            AT(gone, 1, found) = number;
            found++;
        }
        block->number = 0;
        losses.cached++;
        losses.reusable += !block->refs;
    }
    count_losses(self, &losses, for_reuse);
    return found;
}

PyObject *forget(BlockArrays *self, PyObject *const *args, Py_ssize_t count)
{
    Arguments a;
    if (open_apart(self, args, count, "vOn", &a) < 0)
        return NULL;
    Ints *ids = &a.ints[0], *gone = &a.ints[1];
    Py_ssize_t found = has_room(gone, 2, ids->columns) ? can_forget(self, ids) : -2;
    if (!found)
        found = forget_all(self, ids, gone, a.numbers[0] != 0);
    close_arguments(&a);
    return found > -2 ? PyLong_FromSsize_t(found) : NULL;
}

PyObject *are_keyed_under(BlockArrays *self, PyObject *const *args, Py_ssize_t count)
{
    Arguments a;
    if (open_arguments(args, count, "vrv", &a) < 0)
        return NULL;
    Ints *groups = &a.ints[0], *ids = &a.ints[1], *numbers = &a.ints[2];
    int ok = are_groups(self, groups, ids->rows, 0) && covers(numbers, 0, ids->columns) && are_blocks(self, ids);
    int same = 1;
    for (Py_ssize_t i = 0; ok && same && i < ids->rows; i++)
        for (Py_ssize_t j = 0; same && j < ids->columns; j++) {
            int32_t b = AT(ids, i, j);
            same = !b || (BLOCK(self, b).number == AT(numbers, 0, j) && BLOCK(self, b).group == AT(groups, 0, i));
        }
    close_arguments(&a);
    return ok ? PyBool_FromLong(same) : NULL;
}
