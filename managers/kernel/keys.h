/* What each block is keyed under. Blocks of equal key stand in line, the one that serves first. ahead and behind are 0
   for a block that stands alone; the first one's ahead is the last of the line. */

#include "arrays.h"

static void join_line(BlockArrays *self, int32_t first, int32_t b)
{
    int32_t last = BLOCK(self, first).ahead ? BLOCK(self, first).ahead : first;
    BLOCK(self, last).behind = b;
    BLOCK(self, b).ahead = last;
    BLOCK(self, first).ahead = b;
}

/* Returns whether b was the last in its line, so that the key is gone. firsts are those of its group. */
static int leave_line(BlockArrays *self, int32_t *firsts, int32_t number, int32_t b)
{
    int32_t before = BLOCK(self, b).ahead, after = BLOCK(self, b).behind;
    if (!(before | after)) { /* alone, as nearly all are: no other record need be looked at */
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

/* Returns whether all can be keyed here, or -1, an error. */
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
            if (b && (blocks[b].number || !number || (first && blocks[first].irregular)))
                able = 0;
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
static void give_keys(BlockArrays *self, int32_t group, Ints *ids, Py_ssize_t i, Ints *numbers, Ints *stored)
{
    Block *blocks = &BLOCK(self, 0);
    int32_t *firsts = &INDEX(self, group, 0);
    int64_t cached = 0, reusable = 0;
    for (Py_ssize_t j = 0; j < ids->columns; j++) {
        int32_t b = AT(ids, i, j), number = number_at(self, numbers, j), first = firsts[number];
        if (stored->data)
            AT(stored, i, j) = b && !first ? number : 0;
        if (!b)
            continue;
        if (blocks[b].group != group)
            move_to(self, b, group);
        blocks[b].number = number;
        cached++;
        reusable += !blocks[b].refs;
        if (first)
            join_line(self, first, b);
        else
            firsts[number] = b;
    }
    COUNT(self, CACHED, group) += cached;
    COUNT(self, REUSABLE, group) += reusable;
}

static PyObject *register_rows(BlockArrays *self, PyObject *const *args, Py_ssize_t count)
{
    Arguments a;
    if (open_arguments(args, count, "rrrw", &a) < 0)
        return NULL;
    Ints *groups = &a.ints[0], *ids = &a.ints[1], *numbers = &a.ints[2], *stored = &a.ints[3];
    int ok = are_groups(self, groups, ids->rows, 0) && covers(numbers, 0, ids->columns) &&
             has_room(stored, ids->rows, ids->columns);
    int able = ok ? can_register(self, groups, ids, numbers) : -1;
    for (Py_ssize_t i = 0; able > 0 && i < ids->rows; i++)
        give_keys(self, AT(groups, 0, i), ids, i, numbers, stored);
    close_arguments(&a);
    return able < 0 ? NULL : PyBool_FromLong(able);
}

/* Blocks of one group that have lost their keys, and how many of them are free. */
typedef struct {
    int32_t group;
    int64_t cached, reusable;
} Losses;

static void lose(BlockArrays *self, Losses *losses, int for_reuse)
{
    if (!losses->cached)
        return;
    COUNT(self, CACHED, losses->group) -= losses->cached;
    COUNT(self, REUSABLE, losses->group) -= losses->reusable;
    COUNT(self, EVICTIONS, losses->group) += for_reuse ? losses->cached : 0;
    losses->cached = losses->reusable = 0;
}

/* Returns 0, -1 where one of ids is irregular, or -2, an error. */
static int can_withdraw(BlockArrays *self, Ints *ids)
{
    const Block *blocks = &BLOCK(self, 0);
    int32_t irregular = 0;
    for (Py_ssize_t j = 0; j < ids->columns; j++) {
        int32_t b = AT(ids, 0, j);
        if (!is_block(self, b)) {
            refuse_block(self, b);
            return -2;
        }
        irregular |= blocks[b].irregular;
        if (blocks[b].number && !is_key(self, blocks[b].group, blocks[b].number)) {
            PyErr_Format(PyExc_IndexError, "block %d has number %d of group %d, of which there is none", b,
                         blocks[b].number, blocks[b].group);
            return -2;
        }
    }
    return irregular ? -1 : 0;
}

/* Returns how many keys are gone with the keys of ids. */
static Py_ssize_t withdraw(BlockArrays *self, Ints *ids, Ints *gone, int for_reuse)
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
            lose(self, &losses, for_reuse);
            losses.group = block->group;
            firsts = &INDEX(self, losses.group, 0);
        }
        if (leave_line(self, firsts, number, b) && gone->data) {
            AT(gone, 0, found) = losses.group;
            AT(gone, 1, found) = number;
            found++;
        }
        block->number = 0;
        losses.cached++;
        losses.reusable += !block->refs;
    }
    lose(self, &losses, for_reuse);
    return found;
}

static PyObject *forget(BlockArrays *self, PyObject *const *args, Py_ssize_t count)
{
    Arguments a;
    if (open_arguments(args, count, "rwn", &a) < 0)
        return NULL;
    Ints *ids = &a.ints[0], *gone = &a.ints[1];
    Py_ssize_t found = has_room(gone, 2, ids->columns) ? can_withdraw(self, ids) : -2;
    if (!found)
        found = withdraw(self, ids, gone, a.numbers[0] != 0);
    close_arguments(&a);
    return found > -2 ? PyLong_FromSsize_t(found) : NULL;
}

static PyObject *stand_for(BlockArrays *self, PyObject *const *args, Py_ssize_t count)
{
    Arguments a;
    int same = 1;
    if (open_arguments(args, count, "rr", &a) < 0)
        return NULL;
    Ints *ids = &a.ints[0], *numbers = &a.ints[1];
    int ok = are_blocks(self, ids) && covers(numbers, 0, ids->columns);
    for (Py_ssize_t i = 0; ok && same && i < ids->rows; i++)
        for (Py_ssize_t j = 0; same && j < ids->columns; j++) {
            int32_t b = AT(ids, i, j);
            same = !b || BLOCK(self, b).number == AT(numbers, 0, j);
        }
    close_arguments(&a);
    return ok ? PyBool_FromLong(same) : NULL;
}
