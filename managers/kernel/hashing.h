/* The chain of keys over a list of token ids. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "sha256.h"

#define DIGEST 32

/* Asked for once, when the module is made: a virtual machine takes long to answer. */
static int sha_instructions = 0;

/* The token ids of one unit as little-endian 64-bit integers. */
static int write_tokens(PyObject *tokens, Py_ssize_t start, Py_ssize_t unit, uint8_t *to)
{
    for (Py_ssize_t i = 0; i < unit; i++) {
        PyObject *item = PyList_GET_ITEM(tokens, start + i);
        if (!PyLong_Check(item)) { /* nothing that could run code of its own */
            PyErr_Format(PyExc_TypeError, "a token id must be an int, found %s", Py_TYPE(item)->tp_name);
            return -1;
        }
        long long token = PyLong_AsLongLong(item);
        if (token == -1 && PyErr_Occurred())
            return -1;
        for (int byte = 0; byte < 8; byte++)
            to[8 * i + byte] = (uint8_t)((unsigned long long)token >> 8 * byte);
    }
    return 0;
}

static int add_keys(PyObject *keys, PyObject *tokens, Py_ssize_t unit, const char *parent, int natively)
{
    Py_ssize_t units = PyList_GET_SIZE(tokens) / unit, length = DIGEST + 8 * unit;
    if (units <= PyList_GET_SIZE(keys))
        return 0;
    uint8_t *buffer = PyMem_Malloc(length + 72), digest[DIGEST];
    if (!buffer) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(digest, parent, DIGEST);
    for (Py_ssize_t i = PyList_GET_SIZE(keys); i < units; i++) {
        memcpy(buffer, digest, DIGEST);
        PyObject *key = NULL;
        if (write_tokens(tokens, i * unit, unit, buffer + DIGEST) == 0) {
            sha256(buffer, length, digest, natively);
            key = PyBytes_FromStringAndSize((const char *)digest, DIGEST);
        }
        int failed = !key || PyList_Append(keys, key) < 0;
        Py_XDECREF(key);
        if (failed) {
            PyMem_Free(buffer);
            return -1;
        }
    }
    PyMem_Free(buffer);
    return 0;
}

static PyObject *extend_keys(PyObject *module, PyObject *args)
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
    if (unit < 1 || root_length != DIGEST)
        return PyErr_Format(PyExc_ValueError, "a unit of at least 1 and keys of 32 bytes are needed, found %zd and %zd",
                            unit, root_length);
    if (add_keys(keys, tokens, unit, root, natively && sha_instructions) < 0)
        return NULL;
    Py_RETURN_NONE;
}
