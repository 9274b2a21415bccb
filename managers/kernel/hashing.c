#include "passes.h"

#include "sha256.h"
#include "small_int.h"

enum { NARROW = 4, WIDE = 8, SHAPE = 9 };

static int has_instructions = 0;

void prepare_hashing(void) { has_instructions = sha256_has_instructions(); }

/* The preimage of one unit's key: token ids, the parent's key, and the shape, which are the width and the number of the
   ids (see plain.py). The blocks before the parent's key, the heads, can be hashed before the parent is known. */
typedef struct {
    uint8_t *bytes;
    uint32_t state[8];
    int width;
    size_t parent_at, heads, blocks;
} Message;

static uint8_t *put_little_endian(uint8_t *to, uint64_t value, int width)
{
    for (int byte = 0; byte < width; byte++)
        *to++ = (uint8_t)(value >> 8 * byte);
    return to;
}

/* Write what depends only on the width and the number of the ids: shape and padding. */
static void lay_out(Message *message, int width, Py_ssize_t unit)
{
    message->width = width;
    message->parent_at = (size_t)unit * width;
    message->heads = message->parent_at / SHA256_BLOCK;
    uint8_t *shape = message->bytes + message->parent_at + SHA256_DIGEST;
    put_little_endian(put_little_endian(shape, width, 1), unit, 8);
    message->blocks = sha256_pad(message->bytes, message->parent_at + SHA256_DIGEST + SHAPE);
}

/* Read the token ids of one unit. Returns their width, or -1, an error. Only plain ints are read, so no code of a
   token's class can run and change the list. */
static int read_ids(PyObject *tokens, Py_ssize_t start, Py_ssize_t unit, int64_t *ids)
{
    uint64_t bits = 0;
    for (Py_ssize_t i = 0; i < unit; i++) {
        PyObject *item = PyList_GET_ITEM(tokens, start + i);
        if (!PyLong_CheckExact(item)) {
            PyErr_Format(PyExc_TypeError, "a token id must be an int, found %s", Py_TYPE(item)->tp_name);
            return -1;
        }
        ids[i] = is_small_int(item) ? small_int_value(item) : PyLong_AsLongLong(item);
        if (ids[i] == -1 && PyErr_Occurred())
            return -1;
        bits |= (uint64_t)ids[i];
    }
    return bits >> 32 ? WIDE : NARROW;
}

static int begin(Message *message, PyObject *tokens, Py_ssize_t start, Py_ssize_t unit, int64_t *ids)
{
    int width = read_ids(tokens, start, unit, ids);
    if (width < 0)
        return -1;
    if (message->width != width)
        lay_out(message, width, unit);
    if (width == NARROW)
        for (Py_ssize_t i = 0; i < unit; i++)
            put_little_endian(message->bytes + NARROW * i, ids[i], NARROW);
    else
        for (Py_ssize_t i = 0; i < unit; i++)
            put_little_endian(message->bytes + WIDE * i, ids[i], WIDE);
    memcpy(message->state, SHA256_START, sizeof message->state);
    return 0;
}

static Sha256Run heads(Message *message)
{
    Sha256Run run = {message->state, message->bytes, message->heads};
    return run;
}

static Sha256Run rest(Message *message, const char *parent)
{
    size_t at = message->heads * SHA256_BLOCK;
    memcpy(message->bytes + message->parent_at, parent, SHA256_DIGEST);
    Sha256Run run = {message->state, message->bytes + at, message->blocks - message->heads};
    return run;
}

/* Append the digest of a state to keys. Returns its bytes, or NULL, an error. */
static const char *append_key(PyObject *keys, const uint32_t *state)
{
    PyObject *key = PyBytes_FromStringAndSize(NULL, SHA256_DIGEST);
    if (!key)
        return NULL;
    sha256_digest(state, (uint8_t *)PyBytes_AS_STRING(key));
    int failed = PyList_Append(keys, key) < 0;
    Py_DECREF(key);
    return failed ? NULL : PyBytes_AS_STRING(key);
}

static int add_keys(PyObject *keys, PyObject *tokens, Py_ssize_t unit, const char *parent, int with_instructions)
{
    Py_ssize_t done = PyList_GET_SIZE(keys), units = PyList_GET_SIZE(tokens) / unit;
    if (units <= done)
        return 0;
    size_t room = WIDE * (size_t)unit, size = room + SHA256_DIGEST + SHAPE + SHA256_MAX_PADDING;
    int64_t *ids = PyMem_Malloc(room + 2 * size);
    if (!ids) {
        PyErr_NoMemory();
        return -1;
    }
    uint8_t *bytes = (uint8_t *)ids + room;
    Message messages[2] = {{.bytes = bytes}, {.bytes = bytes + size}};
    const Sha256Run none = {0};
    int failed = begin(&messages[done % 2], tokens, done * unit, unit, ids) < 0;
    if (!failed)
        sha256_compress(heads(&messages[done % 2]), none, with_instructions);
    for (Py_ssize_t i = done; !failed && i < units; i++) {
        Message *now = &messages[i % 2], *next = i + 1 < units ? &messages[(i + 1) % 2] : NULL;
        failed = next && begin(next, tokens, (i + 1) * unit, unit, ids) < 0;
        if (failed)
            break;
        sha256_compress(rest(now, parent), next ? heads(next) : none, with_instructions);
        parent = append_key(keys, now->state);
        failed = !parent;
    }
    PyMem_Free(ids);
    if (failed) { /* remove the keys of earlier units */
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        PyList_SetSlice(keys, done, PyList_GET_SIZE(keys), NULL);
        PyErr_Restore(type, value, trace);
    }
    return failed ? -1 : 0;
}

PyObject *extend_keys(PyObject *module, PyObject *args)
{
    PyObject *keys, *tokens;
    Py_ssize_t unit, root_length;
    const char *root;
    int natively = 1;
    if (!PyArg_ParseTuple(args, "O!O!ny#|p", &PyList_Type, &keys, &PyList_Type, &tokens, &unit, &root, &root_length,
                          &natively))
        return NULL;
    Py_ssize_t done = PyList_GET_SIZE(keys);
    if (done) {
        PyObject *last = PyList_GET_ITEM(keys, done - 1);
        root_length = PyBytes_Check(last) ? PyBytes_GET_SIZE(last) : 0;
        root = root_length ? PyBytes_AS_STRING(last) : "";
    }
    if (unit < 1 || root_length != SHA256_DIGEST)
        return PyErr_Format(PyExc_ValueError, "a unit of at least 1 and keys of 32 bytes are needed, found %zd and %zd",
                            unit, root_length);
    if (add_keys(keys, tokens, unit, root, natively && has_instructions) < 0)
        return NULL;
    Py_RETURN_NONE;
}
