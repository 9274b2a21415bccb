/* The extension module: the operations of a block pool on its arrays, and the hashing of keys.

   plain.py in this folder is the specification. It has a function of the same name for every function here, and the
   tests compare the two. The module keeps no state but pointers to the numpy arrays that the pool owns. */

#include "passes.h"

/* Keep a buffer of the pool for as long as this object, or the next index, lives. kinds are the formats of its items,
   any if NULL. */
static int keep(PyObject *array, Py_buffer *buffer, size_t itemsize, const char *kinds, const char *name)
{
    if (PyObject_GetBuffer(array, buffer, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE | PyBUF_FORMAT) < 0)
        return -1;
    const char *format = buffer->format ? buffer->format : "B";
    if ((size_t)buffer->itemsize != itemsize)
        PyErr_Format(PyExc_TypeError, "%s needs items of %zu bytes, found %zd", name, itemsize, buffer->itemsize);
    else if (kinds && (strlen(format) != 1 || !strchr(kinds, *format)))
        PyErr_Format(PyExc_TypeError, "%s needs signed integers, found items of format '%s'", name, format);
    else if ((uintptr_t)buffer->buf % (itemsize < 8 ? itemsize : 8))
        PyErr_Format(PyExc_TypeError, "%s must be aligned in memory", name);
    else
        return 0;
    PyBuffer_Release(buffer);
    return -1;
}

static int share_memory(const Py_buffer *a, const Py_buffer *b)
{
    return (char *)a->buf < (char *)b->buf + b->len && (char *)b->buf < (char *)a->buf + a->len;
}

static PyObject *use_index(BlockArrays *self, PyObject *array)
{
    Py_buffer index;
    if (keep(array, &index, sizeof(int32_t), "ilq", "index") < 0)
        return NULL;
    Py_ssize_t entries = index.len / index.itemsize, numbers = self->num_groups ? entries / self->num_groups : 0;
    if (numbers < 1 || entries != numbers * self->num_groups || numbers > INT32_MAX)
        PyErr_Format(PyExc_ValueError, "index needs a row for each of %zd groups", self->num_groups);
    else if (share_memory(&index, &self->blocks) || share_memory(&index, &self->counts))
        PyErr_SetString(PyExc_ValueError, "index shares memory with the pool's other arrays");
    else {
        if (self->index.obj)
            PyBuffer_Release(&self->index);
        self->index = index;
        self->num_numbers = numbers;
        return Py_NewRef(Py_None);
    }
    PyBuffer_Release(&index);
    return NULL;
}

static int open_arrays(BlockArrays *self, PyObject *blocks, PyObject *counts, PyObject *index)
{
    if (keep(blocks, &self->blocks, sizeof(Block), NULL, "blocks") < 0 ||
        keep(counts, &self->counts, sizeof(int64_t), "lq", "counts") < 0)
        return -1;
    self->num_blocks = self->blocks.len / self->blocks.itemsize;
    self->num_groups = self->counts.len / self->counts.itemsize / COUNTS;
    if (self->counts.len != self->num_groups * COUNTS * self->counts.itemsize || self->num_blocks > INT32_MAX) {
        PyErr_Format(PyExc_ValueError, "%d counts for each group and at most %d blocks are needed, found %zd and %zd",
                     COUNTS, INT32_MAX, self->counts.len / self->counts.itemsize, self->num_blocks);
        return -1;
    }
    if (share_memory(&self->blocks, &self->counts)) {
        PyErr_SetString(PyExc_ValueError, "blocks and counts share memory");
        return -1;
    }
    PyObject *done = use_index(self, index);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* Not in two steps, __new__ and __init__, so that there is no object without arrays. */
static PyObject *make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"blocks", "counts", "index", NULL};
    PyObject *blocks, *counts, *index;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO", names, &blocks, &counts, &index))
        return NULL;
    BlockArrays *made = (BlockArrays *)type->tp_alloc(type, 0);
    if (made && open_arrays(made, blocks, counts, index) < 0)
        Py_CLEAR(made);
    return (PyObject *)made;
}

static void dealloc(BlockArrays *self)
{
    Py_buffer *kept[] = {&self->blocks, &self->counts, &self->index};
    for (int i = 0; i < 3; i++)
        if (kept[i]->obj)
            PyBuffer_Release(kept[i]);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *get_probes(BlockArrays *self, void *unused) { return PyLong_FromLongLong(self->probes); }

#define FAST(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}

static PyMethodDef methods[] = {
    {"use_index", (PyCFunction)use_index, METH_O, NULL},
    FAST(allocate), FAST(count_free), FAST(hold), FAST(release),
    FAST(register_rows), FAST(forget), FAST(are_keyed_under),
    FAST(first_missing), FAST(last_missing), FAST(last_present), FAST(last_run), FAST(gather),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef properties[] = {
    {"probes", (getter)get_probes, NULL, "Number of entries that look-ups have examined.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject block_arrays = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "kvhybrid.managers.kernel._native.BlockArrays",
    .tp_basicsize = sizeof(BlockArrays),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "The operations of a block pool on its arrays; see kvhybrid.managers.kernel.plain.",
    .tp_new = make,
    .tp_dealloc = (destructor)dealloc,
    .tp_methods = methods,
    .tp_getset = properties,
};

static PyMethodDef functions[] = {
    {"extend_keys", extend_keys, METH_VARARGS, "See kvhybrid.managers.kernel.plain."},
    {"as_token_ids", as_token_ids, METH_O, "See kvhybrid.managers.kernel.plain."},
    FAST(put_span), FAST(stretches), FAST(merge_equal_rows), FAST(mark_all), FAST(mark_each),
    {NULL, NULL, 0, NULL},
};

static PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_native",
    .m_doc = "Operations on the arrays of a block pool, and the hashing of its keys.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__native(void)
{
    prepare_hashing();
    if (PyType_Ready(&block_arrays) < 0)
        return NULL;
    PyObject *made = PyModule_Create(&module);
    if (made && PyModule_AddObjectRef(made, "BlockArrays", (PyObject *)&block_arrays) < 0)
        Py_CLEAR(made);
    return made;
}
