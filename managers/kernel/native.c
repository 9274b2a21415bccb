/* The passes of a block pool over its arrays, natively.

   plain.py beside this file is the specification: it has the function of the same name for every function here, and
   the tests hold one against the other. Nothing is kept here but pointers to the numpy arrays that the pool owns.
   Every block id and prefix number is checked before it is followed. */

#include "passes.h"

static int keep(PyObject *array, Py_buffer *buffer, Py_ssize_t itemsize, const char *name)
{
    if (PyObject_GetBuffer(array, buffer, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) < 0)
        return -1;
    if (buffer->itemsize == itemsize)
        return 0;
    PyErr_Format(PyExc_TypeError, "%s needs items of %zd bytes, found %zd", name, itemsize, buffer->itemsize);
    PyBuffer_Release(buffer);
    buffer->obj = NULL;
    return -1;
}

static PyObject *use_index(BlockArrays *self, PyObject *array)
{
    Py_buffer index;
    if (keep(array, &index, 4, "index") < 0)
        return NULL;
    Py_ssize_t numbers = self->num_groups ? index.len / 4 / self->num_groups : 0;
    if (numbers < 1 || index.len != numbers * 4 * self->num_groups) {
        PyBuffer_Release(&index);
        return PyErr_Format(PyExc_ValueError, "index needs a row for each of %zd groups", self->num_groups);
    }
    if (self->index.obj)
        PyBuffer_Release(&self->index);
    self->index = index;
    self->num_numbers = numbers;
    return Py_NewRef(Py_None);
}

static int init(BlockArrays *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"blocks", "counts", "index", NULL};
    PyObject *blocks, *counts, *index;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO", names, &blocks, &counts, &index))
        return -1;
    if (self->blocks.obj) {
        PyErr_SetString(PyExc_TypeError, "BlockArrays is made once");
        return -1;
    }
    if (keep(blocks, &self->blocks, sizeof(Block), "blocks") < 0 || keep(counts, &self->counts, 8, "counts") < 0)
        return -1;
    self->num_blocks = self->blocks.len / sizeof(Block);
    self->num_groups = self->counts.len / 8 / COUNTS;
    PyObject *done = use_index(self, index);
    Py_XDECREF(done);
    return done ? 0 : -1;
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
    FAST(hand_out), FAST(count_free), FAST(hold), FAST(release),
    FAST(register_rows), FAST(forget), FAST(stand_for),
    FAST(first_missing), FAST(last_missing), FAST(last_present), FAST(last_run), FAST(gather),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef properties[] = {
    {"probes", (getter)get_probes, NULL, "Entries that look-ups have examined.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject block_arrays = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "kvhybrid.managers.kernel._native.BlockArrays",
    .tp_basicsize = sizeof(BlockArrays),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "The passes of a block pool over its arrays; see kvhybrid.managers.kernel.plain.",
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)init,
    .tp_dealloc = (destructor)dealloc,
    .tp_methods = methods,
    .tp_getset = properties,
};

static PyMethodDef functions[] = {
    {"extend_keys", extend_keys, METH_VARARGS, "See kvhybrid.managers.kernel.plain."},
    {"as_token_ids", as_token_ids, METH_O, "See kvhybrid.managers.kernel.plain."},
    FAST(put_span), FAST(stretches), FAST(gather_alike), FAST(mark_all), FAST(mark_each),
    {NULL, NULL, 0, NULL},
};

static PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_native", "Native passes over the arrays of a block pool, and its keys.", -1, functions,
    NULL, NULL, NULL, NULL,
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
