/* The Python module hifigemm._core, for the stable ABI of Python 3.10 and later.
 *
 *   multiply(a, b, c, first, second, shift, kind, check=None) -> bool
 *   to_doubles(x, shift, y, bounds) -> bool
 *   round_product(product, rows, columns, terms, values) -> int
 *   finish(a, b, entries, values, shift, check=None) -> None
 *   are_ordinary(x, least) -> bool
 *   combine(t, alpha, c, beta, out) -> bool
 *   combine_pair(high, low, alpha, c, beta, lost, out) -> bool
 *   magnitude_product(a, v, out) -> None
 *   equilibrate(a, b, scaled_a, scaled_b, exponents) -> int or None
 *   enclose(a, b, inverse, bounds, x, radius, norm, inverse_norm) -> bool
 *   eliminate(a, imag, rows, columns, primes, roots, determinants, minors, numerators)
 *       -> None
 *   factorise_band(a, lower, upper, columns, factors, pivots) -> bool
 *   banded_products(columns, factors, pivots, lower, upper, first, q, s, v, images, sizes,
 *       gaps, check=None) -> None
 *   solve_small(a, b, x, radius, proofs, check=None) -> None
 *   determinants(a, bounds) -> None
 *   definite(a, answers) -> None
 *   use(name) -> None       choose one of `instructions`, for tests
 *   instructions            names of the sets that this machine has, the widest first
 *
 * Handlers of signals run during a call in Python's main thread, and an error that one of
 * them raises, KeyboardInterrupt for Ctrl-C, ends the call.
 *
 * Arrays come by NumPy's array interface, whose C structure __array_struct__ holds:
 * Py_buffer belongs to the stable ABI from Python 3.11 only.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "core.h"
#include "environment.h"
#include "scalar_sums.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#endif

/* ---- arrays --------------------------------------------------------------------- */

/* PyArrayInterface of NumPy's documented array interface. */
typedef struct {
    int two; /* always 2 */
    int nd;
    char typekind;
    int itemsize;
    int flags;
    Py_ssize_t *shape, *strides;
    void *data;
    PyObject *descr;
} ArrayInterface;

enum { ALIGNED = 0x100, NATIVE_ORDER = 0x200, WRITEABLE = 0x400 };

/* The view of a stack of matrices, or of one; returns 0 with an exception set. */
static int read_array(PyObject *array, const char *name, int is_written, View *view,
                      Py_ssize_t shape[3])
{
    PyObject *capsule = PyObject_GetAttrString(array, "__array_struct__");
    if (!capsule)
        return 0;
    const ArrayInterface *x = PyCapsule_GetPointer(capsule, NULL);
    int needed = ALIGNED | NATIVE_ORDER | (is_written ? WRITEABLE : 0), is_read = 0;
    if (!x) {
        /* the exception is set */
    } else if (x->two != 2 || (x->nd != 2 && x->nd != 3)) {
        PyErr_Format(PyExc_ValueError, "%s has %d axes; expected 2 or 3", name, x->nd);
    } else if (x->typekind != 'f' || (x->itemsize != 4 && x->itemsize != 8)
               || (x->flags & needed) != needed) {
        PyErr_Format(PyExc_TypeError, "%s is no aligned array of float32 or float64",
                     name);
    } else {
        int is_stack = x->nd == 3;
        shape[0] = is_stack ? x->shape[0] : 1;
        shape[1] = x->shape[is_stack];
        shape[2] = x->shape[is_stack + 1];
        view->data = x->data;
        view->matrix = is_stack && shape[0] != 1 ? x->strides[0] : 0;
        view->row = x->strides[is_stack];
        view->column = x->strides[is_stack + 1];
        view->is_single = x->itemsize == 4;
        is_read = 1;
    }
    Py_DECREF(capsule);
    return is_read;
}

/* An entry of an array of float64. */
static double number_at(const View *x, ptrdiff_t z, ptrdiff_t i, ptrdiff_t j)
{
    double value;
    memcpy(&value, x->data + z * x->matrix + i * x->row + j * x->column, sizeof value);
    return value;
}

static int has_shape(const Py_ssize_t shape[3], Py_ssize_t batch, Py_ssize_t rows,
                     Py_ssize_t columns)
{
    return shape[0] == batch && shape[1] == rows && shape[2] == columns;
}

/* ---- work without the GIL ------------------------------------------------------- */

/* Milliseconds between two checks for signals: a delay of a tenth of a second is hardly
 * noticed, and taking the GIL from a busy thread costs 5. */
enum { PERIOD = 100 };

static int64_t milliseconds(void)
{
#if defined(_WIN32)
    return (int64_t)GetTickCount64();
#else
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
#endif
}

/* A call at work: without the GIL, in arithmetic as the core needs it. */
typedef struct {
    Watch watch; /* first: a pointer to it is one to all of this */
    PyThreadState *thread;
    Environment environment; /* of the caller */
    PyObject *check; /* called at each check, stops the call if it raises an error; or NULL */
    int64_t last_look; /* 0: none yet */
    int sees_signals, has_stopped;
} Work;

static void enter(Work *work)
{
    work->thread = PyEval_SaveThread();
    work->environment = enter_ieee();
}

static void leave(const Work *work)
{
    leave_ieee(work->environment);
    PyEval_RestoreThread(work->thread);
}

/* 1 in Python's main thread, the only one that runs signal handlers, and if the thread is
 * unknown; otherwise 0. A handler may run in here: -1 if it raises an error. */
static int is_main_thread(void)
{
    int is_main = 1;
    PyObject *threading = PyImport_ImportModule("threading");
    PyObject *thread = threading ? PyObject_CallMethod(threading, "main_thread", NULL) : NULL;
    PyObject *number = thread ? PyObject_GetAttrString(thread, "ident") : NULL;
    if (number && PyLong_Check(number))
        is_main = PyLong_AsUnsignedLong(number) == PyThread_get_thread_ident();
    if (!number && (PyErr_ExceptionMatches(PyExc_ImportError)
                    || PyErr_ExceptionMatches(PyExc_AttributeError)))
        PyErr_Clear(); /* while Python shuts down */
    if (PyErr_Occurred())
        is_main = -1;
    Py_XDECREF(number);
    Py_XDECREF(thread);
    Py_XDECREF(threading);
    return is_main;
}

/* Watch.is_to_stop: once in a PERIOD run the signal handlers and the check. Returns 1, with
 * an exception set, if one of them raises an error. */
static int look(Watch *watch)
{
    Work *work = (Work *)watch;
    if (work->has_stopped)
        return 1;
    watch->terms = PULSE;
    int64_t now = milliseconds();
    if (work->last_look == 0)
        work->last_look = now;
    if (now - work->last_look < PERIOD)
        return 0;

    leave(work);
    if (work->sees_signals < 0)
        work->sees_signals = is_main_thread();
    if (work->sees_signals)
        work->has_stopped = work->sees_signals < 0 || PyErr_CheckSignals() < 0;
    if (work->check && !work->has_stopped) {
        PyObject *result = PyObject_CallObject(work->check, NULL);
        work->has_stopped = !result;
        Py_XDECREF(result);
    }
    enter(work);
    work->last_look = milliseconds();
    if (work->has_stopped)
        watch->terms = 0;
    else if (!work->sees_signals && !work->check)
        watch->terms = INT64_MAX; /* nothing will ever stop it */
    return work->has_stopped;
}

/* Begin work; `leave` ends it. */
static void begin(Work *work, PyObject *check)
{
    *work = (Work){.watch = {PULSE, look}, .check = check, .sees_signals = -1};
    enter(work);
}

/* ---- functions ------------------------------------------------------------------ */

static const Kernels *kernels;

PyDoc_STRVAR(multiply_doc,
"multiply(a, b, c, first, second, shift, kind, check=None, factor=0.0, c_low=None)\n--\n\n"
"2**shift (factor A B + C), rounded to the dtype of `first`; False where A or B holds\n"
"Inf or NaN, and nothing is to be read of the results then.\n\n"
"a (batch or 1, m, k) and b (batch or 1, k, n) are of float32 or float64, with any\n"
"strides. C is c, or the sum of c and c_low, which lie in the same memory in the same order:\n"
"(batch, m, n), finite, or None. A factor of 0 stands for 1; others, and c_low, ask for kind\n"
"0 and shift 0. kind 0 writes the nearest numbers to `first`, 1 what these leave to `second`\n"
"as well, 2 the lower and upper neighbours, 3 close ones: with k terms they err by 2**-52 of themselves and 2**-102 (k + 4)**2 times the\n"
"norms of a row of A and a column of B, times 2**shift, at most; 4 two numbers whose sum\n"
"errs by the second part of that; 5 numbers as with 3, by sums in three words, which err by\n"
"2**-144 (k + 40)**2 times the norms for k below 2**25; 6 what these leave as well.\n"
"check is called every tenth of a second or so; an error that it raises ends the call.");

enum { CLOSE = 3, CLOSE_PAIR = 4, CLOSE_IN_THREE = 5, CLOSE_PAIR_IN_THREE = 6 };

static PyObject *core_multiply(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    if (count < 7 || count > 10) {
        PyErr_SetString(PyExc_TypeError, "multiply takes seven arguments to ten");
        return NULL;
    }
    PyObject *check = count > 7 && args[7] != Py_None ? args[7] : NULL;
    PyObject *c_low = count > 9 && args[9] != Py_None ? args[9] : NULL;
    Product p;
    memset(&p, 0, sizeof p);
    Py_ssize_t a[3], b[3], c[3], first[3], second[3];
    View low;
    Py_ssize_t low_shape[3] = {0};
    p.factor = count > 8 ? PyFloat_AsDouble(args[8]) : 0.0;
    long shift = PyLong_AsLong(args[5]), kind = PyLong_AsLong(args[6]);
    if (PyErr_Occurred() || !read_array(args[0], "a", 0, &p.a, a)
        || !read_array(args[1], "b", 0, &p.b, b)
        || (args[2] != Py_None && !read_array(args[2], "c", 0, &p.c, c))
        || (c_low && !read_array(c_low, "c_low", 0, &low, low_shape))
        || !read_array(args[3], "first", 1, &p.first, first)
        || (args[4] != Py_None && !read_array(args[4], "second", 1, &p.second, second)))
        return NULL;

    p.batch = a[0] > b[0] ? a[0] : b[0];
    if (a[0] == 0 || b[0] == 0)
        p.batch = 0;
    p.m = a[1];
    p.k = a[2];
    p.n = b[2];
    p.shift = (int)shift;
    if (kind >= CLOSE && kind <= CLOSE_PAIR_IN_THREE) {
        p.close_words = kind < CLOSE_IN_THREE ? 2 : 3;
        kind = kind == CLOSE || kind == CLOSE_IN_THREE ? NEAREST : PAIR;
    }
    p.kind = (Kind)kind;
    /* Words of a second value are multiples of 2^-shift times the smallest number. */
    long largest_shift = kind == NEAREST ? 2400 : 1100;
    int fits = b[1] == p.k && (a[0] == b[0] || a[0] == 1 || b[0] == 1)
            && has_shape(first, p.batch, p.m, p.n)
            && (args[2] == Py_None || has_shape(c, p.batch, p.m, p.n))
            && (kind == NEAREST || (args[4] != Py_None && has_shape(second, p.batch, p.m, p.n)
                                    && p.first.is_single == p.second.is_single));
    fits &= !(p.close_words && p.first.is_single);
    if (c_low && p.c.data) {
        p.more_addends = 1;
        p.addend = low.data - p.c.data;
        fits &= has_shape(low_shape, p.batch, p.m, p.n) && low.is_single == p.c.is_single
             && (p.batch < 2 || low.matrix == p.c.matrix)
             && (p.m < 2 || low.row == p.c.row) && (p.n < 2 || low.column == p.c.column);
    }
    fits &= (p.factor == 0.0 && !c_low) || (kind == NEAREST && !p.close_words);
    fits &= !c_low || p.c.data != NULL;
    fits &= p.factor == 0.0 || (isfinite(p.factor) && shift == 0);
    if (!fits || kind < NEAREST || kind > ENCLOSURE || shift < -largest_shift
        || shift > largest_shift
        || p.k >= (Py_ssize_t)1 << (sizeof(Py_ssize_t) > 4 ? 31 : 30)) {
        PyErr_SetString(PyExc_ValueError, "shapes, shift or kind do not fit");
        return NULL;
    }

    const Kernels *used = kernels;
    Work work;
    begin(&work, check);
    Outcome outcome = multiply(&p, used, &work.watch);
    leave(&work);
    if (work.has_stopped)
        return NULL;
    if (outcome == NO_MEMORY)
        return PyErr_NoMemory();
    return PyBool_FromLong(outcome == DONE);
}

/* Views of `count` single matrices of float64; from number `written` on they are results.
 * Returns 0 with an exception set. */
static int read_matrices(PyObject *const *args, int count, int written, View *views,
                         Py_ssize_t shapes[][3])
{
    for (int i = 0; i < count; i++) {
        if (!read_array(args[i], "an operand", i >= written, views + i, shapes[i]))
            return 0;
        if (views[i].is_single || shapes[i][0] != 1) {
            PyErr_SetString(PyExc_TypeError, "expected matrices of float64");
            return 0;
        }
    }
    return 1;
}

PyDoc_STRVAR(are_ordinary_doc,
"are_ordinary(x, least)\n--\n\n"
"True if all entries of a matrix or a stack of float32 or float64, with any strides, are\n"
"finite and at least `least` in magnitude.");

/* Magnitudes have the order of their bits: the top bit of a difference tells which one is
 * smaller. Compilers vectorise this. */
#define ROW_IS_ORDINARY(NAME, BITS, TOP) \
    static int NAME(const char *row, Py_ssize_t stride, Py_ssize_t n, BITS least, BITS most) \
    { \
        BITS below = 0, bits; \
        if (stride == (Py_ssize_t)sizeof bits) { \
            for (Py_ssize_t j = 0; j < n; j++) { \
                memcpy(&bits, row + j * (Py_ssize_t)sizeof bits, sizeof bits); \
                bits &= ~((BITS)1 << TOP); \
                below |= (bits - least) | (most - bits); \
            } \
            return !(below >> TOP); \
        } \
        for (Py_ssize_t j = 0; j < n; j++, row += stride) { \
            memcpy(&bits, row, sizeof bits); \
            bits &= ~((BITS)1 << TOP); \
            below |= (bits - least) | (most - bits); \
        } \
        return !(below >> TOP); \
    }

ROW_IS_ORDINARY(double_row_is_ordinary, uint64_t, 63)
ROW_IS_ORDINARY(float_row_is_ordinary, uint32_t, 31)

static PyObject *core_are_ordinary(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "are_ordinary takes two arguments");
        return NULL;
    }
    View x;
    Py_ssize_t shape[3];
    double least = PyFloat_AsDouble(args[1]);
    if (PyErr_Occurred() || !read_array(args[0], "x", 0, &x, shape))
        return NULL;
    if (!(least >= 0.0)) {
        PyErr_SetString(PyExc_ValueError, "least is negative or NaN");
        return NULL;
    }
    float least_single = (float)least; /* rounded up */
    if (least_single < least)
        least_single = nextafterf(least_single, INFINITY);
    double most = DBL_MAX;
    float most_single = FLT_MAX;
    uint64_t least_bits, most_bits;
    uint32_t least_single_bits, most_single_bits;
    memcpy(&least_bits, &least, sizeof least);
    memcpy(&most_bits, &most, sizeof most);
    memcpy(&least_single_bits, &least_single, sizeof least_single);
    memcpy(&most_single_bits, &most_single, sizeof most_single);
    PyThreadState *thread = NULL;
    if (shape[0] * shape[1] * shape[2] > PULSE)
        thread = PyEval_SaveThread();
    int ordinary = 1;
    for (Py_ssize_t z = 0; ordinary && z < shape[0]; z++)
        for (Py_ssize_t i = 0; ordinary && i < shape[1]; i++) {
            const char *row = (const char *)x.data + z * x.matrix + i * x.row;
            ordinary = x.is_single
                ? float_row_is_ordinary(row, x.column, shape[2], least_single_bits,
                                        most_single_bits)
                : double_row_is_ordinary(row, x.column, shape[2], least_bits, most_bits);
        }
    if (thread)
        PyEval_RestoreThread(thread);
    return PyBool_FromLong(ordinary);
}

PyDoc_STRVAR(combine_doc,
"combine(t, alpha, c, beta, out)\n--\n\n"
"Write alpha T + beta C to `out`, its products and sums with their errors; False where an\n"
"entry is not finite, and then `out` means nothing. All are stacks of float32 or of\n"
"float64, of one shape, with any strides; the scalars are finite and not zero.");

/* The sum of numerics.epilogue._compensated_sum for a row of entries, in float64 and then
 * rounded to TYPE. */
#define COMBINE_ROW(NAME, TYPE) \
    static int NAME(const char *t, Py_ssize_t of_t, double alpha, const char *c, \
                    Py_ssize_t of_c, double beta, char *out, Py_ssize_t of_out, Py_ssize_t n) \
    { \
        Factor alpha_factor = halved(alpha), beta_factor = halved(beta); \
        int is_finite = 1; \
        for (Py_ssize_t j = 0; j < n; j++) { \
            TYPE x, y, rounded; \
            double x_error, y_error; \
            memcpy(&x, t + j * of_t, sizeof x); \
            memcpy(&y, c + j * of_c, sizeof y); \
            double p = two_product(alpha_factor, x, &x_error); \
            double q = two_product(beta_factor, y, &y_error); \
            double s = p + q, r = s - p; \
            double sum_error = (p - (s - r)) + (q - r); \
            double value = s + (sum_error + (x_error + y_error)); \
            is_finite &= fabs(value) <= DBL_MAX; \
            rounded = (TYPE)value; \
            memcpy(out + j * of_out, &rounded, sizeof rounded); \
        } \
        return is_finite; \
    }

COMBINE_ROW(combine_double_row, double)
COMBINE_ROW(combine_float_row, float)

static PyObject *core_combine(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    if (count != 5) {
        PyErr_SetString(PyExc_TypeError, "combine takes five arguments");
        return NULL;
    }
    View t, c, out;
    Py_ssize_t shape[3], shape_of_c[3], shape_of_out[3];
    double alpha = PyFloat_AsDouble(args[1]), beta = PyFloat_AsDouble(args[3]);
    if (PyErr_Occurred() || !read_array(args[0], "t", 0, &t, shape)
        || !read_array(args[2], "c", 0, &c, shape_of_c)
        || !read_array(args[4], "out", 1, &out, shape_of_out))
        return NULL;
    int fits = has_shape(shape_of_c, shape[0], shape[1], shape[2])
            && has_shape(shape_of_out, shape[0], shape[1], shape[2])
            && t.is_single == c.is_single && t.is_single == out.is_single;
    if (!fits || alpha == 0.0 || beta == 0.0 || !(fabs(alpha) <= DBL_MAX)
        || !(fabs(beta) <= DBL_MAX)) {
        PyErr_SetString(PyExc_ValueError, "shapes, dtypes or scalars do not fit");
        return NULL;
    }
    PyThreadState *thread = NULL;
    if (shape[0] * shape[1] * shape[2] > PULSE)
        thread = PyEval_SaveThread();
    int is_finite = 1;
    for (Py_ssize_t z = 0; z < shape[0]; z++)
        for (Py_ssize_t i = 0; i < shape[1]; i++)
            is_finite &= (t.is_single ? combine_float_row : combine_double_row)(
                t.data + z * t.matrix + i * t.row, t.column, alpha,
                c.data + z * c.matrix + i * c.row, c.column, beta,
                out.data + z * out.matrix + i * out.row, out.column, shape[2]);
    if (thread)
        PyEval_RestoreThread(thread);
    return PyBool_FromLong(is_finite);
}

PyDoc_STRVAR(combine_pair_doc,
"combine_pair(high, low, alpha, c, beta, lost, out)\n--\n\n"
"Write alpha T + beta C to `out`, rounded once, T being the matrix of which high and low\n"
"are the pair; False where the rounding of an entry is not certain, and then `out` means\n"
"nothing. All are stacks of float64 of one shape, `out` may be of float32; c may be None.\n"
"alpha is finite and not zero, beta is finite. Terms of alpha T may have lost bits that sum\n"
"to `lost`.");

static PyObject *core_combine_pair(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    if (count != 7) {
        PyErr_SetString(PyExc_TypeError, "combine_pair takes seven arguments");
        return NULL;
    }
    View high, low, c, out;
    Py_ssize_t shape[3], others[3][3];
    int has_addend = args[3] != Py_None;
    double alpha = PyFloat_AsDouble(args[2]), beta = PyFloat_AsDouble(args[4]);
    double lost = PyFloat_AsDouble(args[5]);
    if (PyErr_Occurred() || !read_array(args[0], "high", 0, &high, shape)
        || !read_array(args[1], "low", 0, &low, others[0])
        || !read_array(has_addend ? args[3] : args[1], "c", 0, &c, others[1])
        || !read_array(args[6], "out", 1, &out, others[2]))
        return NULL;
    int fits = !high.is_single && !low.is_single && !c.is_single;
    for (int i = 0; i < 3; i++)
        fits &= has_shape(others[i], shape[0], shape[1], shape[2]);
    fits &= fabs(alpha) <= DBL_MAX && fabs(beta) <= DBL_MAX && lost >= 0.0;
    if (!fits || alpha == 0.0) {
        PyErr_SetString(PyExc_ValueError, "shapes, dtypes or scalars do not fit");
        return NULL;
    }
    Factor alpha_factor = halved(alpha), beta_factor = halved(beta);
    PyThreadState *thread = NULL;
    if (shape[0] * shape[1] * shape[2] > PULSE)
        thread = PyEval_SaveThread();
    int is_certain = 1;
    for (Py_ssize_t z = 0; z < shape[0]; z++)
        for (Py_ssize_t i = 0; i < shape[1]; i++)
            for (Py_ssize_t j = 0; j < shape[2]; j++) {
                double rest = number_at(&low, z, i, j);
                Sum total = {.is_exact = 1};
                add_multiple(&total, alpha_factor, number_at(&high, z, i, j));
                add_multiple(&total, alpha_factor, rest);
                if (has_addend && beta != 0.0)
                    add_multiple(&total, beta_factor, number_at(&c, z, i, j));

                /* T lies within half a unit of its pair. */
                double value, lost_here = fabs(alpha * rest) * 0x1p-53 + lost;
                is_certain &= round_sum(&total, lost_here, out.is_single, &value);
                char *at = out.data + z * out.matrix + i * out.row + j * out.column;
                float single = (float)value;
                if (out.is_single)
                    memcpy(at, &single, sizeof single);
                else
                    memcpy(at, &value, sizeof value);
            }
    if (thread)
        PyEval_RestoreThread(thread);
    return PyBool_FromLong(is_certain);
}

PyDoc_STRVAR(magnitude_product_doc,
"magnitude_product(a, v, out)\n--\n\n"
"Write |A| V to `out`, each term with at most n roundings. All are matrices of float64,\n"
"m x n, n x k and m x k, with any strides.");

static PyObject *core_magnitude_product(PyObject *self, PyObject *const *args,
                                        Py_ssize_t count)
{
    (void)self;
    View views[3];
    Py_ssize_t shapes[3][3];
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "magnitude_product takes three arguments");
        return NULL;
    }
    if (!read_matrices(args, 3, 2, views, shapes))
        return NULL;
    Py_ssize_t m = shapes[0][1], n = shapes[0][2], k = shapes[1][2];
    if (!has_shape(shapes[1], 1, n, k) || !has_shape(shapes[2], 1, m, k)) {
        PyErr_SetString(PyExc_ValueError, "shapes do not fit");
        return NULL;
    }
    double *space = malloc(sizeof(double) * (size_t)(n * k + (m > n ? m : n) + 1));
    if (!space)
        return PyErr_NoMemory();
    Work work;
    begin(&work, NULL);
    magnitude_product(m, n, k, views, views + 1, views + 2, space, &work.watch);
    leave(&work);
    free(space);
    if (work.has_stopped)
        return NULL;
    Py_RETURN_NONE;
}

/* True for a matrix of float64 whose rows follow each other in memory. */
static int is_contiguous(const View *x, Py_ssize_t rows, Py_ssize_t columns)
{
    Py_ssize_t size = sizeof(double);
    if (rows == 0 || columns == 0)
        return 1;
    return (columns == 1 || x->column == size) && (rows == 1 || x->row == columns * size);
}

PyDoc_STRVAR(to_doubles_doc,
"to_doubles(x, shift, y, bounds)\n--\n\n"
"Write 2**shift x to y, and to `bounds` (2, m) the norms of its rows, rounded upward, and\n"
"these in units of the rows' lowest bits; False where x holds Inf or NaN.\n\n"
"x (m, k) is of float32, y of float64; either the rows or the columns of both lie in memory\n"
"number by number. shift is at most 300 in magnitude.");

/* True for vectors of numbers of a size that lie in memory side by side. */
static int is_adjacent(Py_ssize_t stride, Py_ssize_t count, Py_ssize_t size)
{
    return stride == size || count <= 1;
}

static PyObject *core_to_doubles(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    if (count != 4) {
        PyErr_SetString(PyExc_TypeError, "to_doubles takes four arguments");
        return NULL;
    }
    View x, results[2];
    Py_ssize_t shape[3], shapes[2][3];
    long shift = PyLong_AsLong(args[1]);
    if (PyErr_Occurred() || !read_array(args[0], "x", 0, &x, shape)
        || !read_matrices(args + 2, 2, 0, results, shapes))
        return NULL;
    Py_ssize_t m = shape[1], k = shape[2];
    int by_rows = x.column == sizeof(float);
    int fits = labs(shift) <= 300 && x.is_single && shape[0] == 1 && has_shape(shapes[0], 1, m, k)
            && has_shape(shapes[1], 1, 2, m) && is_contiguous(results + 1, 2, m)
            && (by_rows ? is_adjacent(results[0].column, k, sizeof(double))
                        : is_adjacent(x.row, m, sizeof(float))
                              && is_adjacent(results[0].row, m, sizeof(double)));
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "shapes, dtypes, layouts or shift do not fit");
        return NULL;
    }
    double *norms = (double *)results[1].data;
    Work work;
    begin(&work, NULL);
    int is_finite = to_doubles(kernels, m, k, &x, (int)shift, results, norms, norms + m,
                               &work.watch);
    leave(&work);
    if (work.has_stopped)
        return NULL;
    return PyBool_FromLong(is_finite);
}

PyDoc_STRVAR(round_product_doc,
"round_product(product, rows, columns, terms, values)\n--\n\n"
"Write a product of so many terms in float64 to `values`, rounded to float32, and NaN where\n"
"that is not certain; returns how many entries these are. `rows` (2, m) and `columns` (2, n)\n"
"are the bounds of `to_doubles`. Entries of rows of the product and of the values lie in\n"
"memory side by side.");

static PyObject *core_round_product(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    if (count != 5) {
        PyErr_SetString(PyExc_TypeError, "round_product takes five arguments");
        return NULL;
    }
    View operands[3], values;
    Py_ssize_t shapes[3][3], shape[3];
    Py_ssize_t k = PyLong_AsSsize_t(args[3]);
    if (PyErr_Occurred() || !read_matrices(args, 3, 3, operands, shapes)
        || !read_array(args[4], "values", 1, &values, shape))
        return NULL;
    Py_ssize_t m = shapes[0][1], n = shapes[0][2];
    int fits = k >= 0 && values.is_single && has_shape(shape, 1, m, n)
            && has_shape(shapes[1], 1, 2, m) && is_contiguous(operands + 1, 2, m)
            && has_shape(shapes[2], 1, 2, n) && is_contiguous(operands + 2, 2, n)
            && is_adjacent(operands[0].column, n, sizeof(double))
            && is_adjacent(values.column, n, sizeof(float));
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "shapes, dtypes or layouts do not fit");
        return NULL;
    }
    Work work;
    begin(&work, NULL);
    Py_ssize_t open =
        round_product(kernels, m, n, k, operands, (const double *)operands[1].data,
                      (const double *)operands[2].data, &values);
    leave(&work);
    return PyLong_FromSsize_t(open);
}

PyDoc_STRVAR(finish_doc,
"finish(a, b, entries, values, shift, check=None)\n--\n\n"
"Write some entries of 2**shift A B, rounded to the dtype of `values` (m, n): the numbers of their\n"
"rows and columns are `entries` (2, count). It is quick where columns that lie close together\n"
"follow each other.\n\n"
"a (m, k) and b (k, n) are of float32 or float64, finite, with any strides. check is called\n"
"every tenth of a second or so; an error that it raises ends the call.");

static PyObject *core_finish(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    if (count != 5 && count != 6) {
        PyErr_SetString(PyExc_TypeError, "finish takes five arguments, or six");
        return NULL;
    }
    PyObject *check = count == 6 && args[5] != Py_None ? args[5] : NULL;
    Product p;
    View entries;
    memset(&p, 0, sizeof p);
    Py_ssize_t a[3], b[3], shape[3], values[3];
    long shift = PyLong_AsLong(args[4]);
    if (PyErr_Occurred() || !read_array(args[0], "a", 0, &p.a, a) || !read_array(args[1], "b", 0, &p.b, b)
        || !read_matrices(args + 2, 1, 1, &entries, &shape)
        || !read_array(args[3], "values", 1, &p.first, values))
        return NULL;
    p.batch = 1;
    p.m = a[1];
    p.k = a[2];
    p.n = b[2];
    p.shift = (int)shift;
    p.kind = NEAREST;
    Py_ssize_t num_entries = shape[2];
    const double *rows = (const double *)entries.data, *columns = rows + num_entries;
    int fits = a[0] == 1 && has_shape(b, 1, p.k, p.n) && has_shape(values, 1, p.m, p.n)
            && shape[1] == 2 && is_contiguous(&entries, 2, num_entries)
            && labs(shift) <= 2400
            && p.k < (Py_ssize_t)1 << (sizeof(Py_ssize_t) > 4 ? 31 : 30);
    for (Py_ssize_t e = 0; fits && e < num_entries; e++)
        fits = rows[e] >= 0.0 && rows[e] < (double)p.m && columns[e] >= 0.0
            && columns[e] < (double)p.n;
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "shapes, entries or shift do not fit");
        return NULL;
    }
    Work work;
    begin(&work, check);
    Outcome outcome = finish(&p, num_entries, rows, columns, kernels, &work.watch);
    leave(&work);
    if (work.has_stopped)
        return NULL;
    if (outcome == NO_MEMORY)
        return PyErr_NoMemory();
    if (outcome == NOT_FINITE) {
        PyErr_SetString(PyExc_ValueError, "an operand holds Inf or NaN");
        return NULL;
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(equilibrate_doc,
"equilibrate(a, b, scaled_a, scaled_b, exponents)\n--\n\n"
"Write the system A x = B with rows and columns in scale, and the exponents of x; returns\n"
"the exponent of its determinant, or None where entries are not moderate, and nothing is\n"
"to be read then. A is n x n and B n x k, of float64. `scaled_a` is contiguous, and so is\n"
"`exponents`, n x k numbers of 64 bits that are seen as float64.");

static PyObject *core_equilibrate(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    View views[5];
    Py_ssize_t shapes[5][3];
    if (count != 5) {
        PyErr_SetString(PyExc_TypeError, "equilibrate takes five arguments");
        return NULL;
    }
    if (!read_matrices(args, 5, 2, views, shapes))
        return NULL;
    Py_ssize_t n = shapes[0][1], k = shapes[1][2];
    int fits = has_shape(shapes[0], 1, n, n) && has_shape(shapes[1], 1, n, k)
            && has_shape(shapes[2], 1, n, n) && has_shape(shapes[3], 1, n, k)
            && has_shape(shapes[4], 1, n, k);
    if (!fits || !is_contiguous(views + 2, n, n) || !is_contiguous(views + 4, n, k)) {
        PyErr_SetString(PyExc_ValueError, "shapes or strides do not fit");
        return NULL;
    }
    double *space = malloc(sizeof(double) * (size_t)(3 * n + 1));
    if (!space)
        return PyErr_NoMemory();
    int64_t sum = 0;
    Work work;
    begin(&work, NULL);
    int is_moderate = equilibrate(n, k, views, views + 1, views + 2, views + 3,
                                  (int64_t *)views[4].data, &sum, space, &work.watch);
    leave(&work);
    free(space);
    if (work.has_stopped)
        return NULL;
    if (!is_moderate)
        Py_RETURN_NONE;
    return PyLong_FromLongLong(sum);
}

PyDoc_STRVAR(enclose_doc,
"enclose(a, b, inverse, bounds, x, radius, norm, inverse_norm)\n--\n\n"
"Write the solution of A x = b after one step, and a radius of each entry; False where\n"
"another step may make it sharper, and nothing is to be read then. A and the inverse R are\n"
"n x n and the others n x 1, of float64 and finite. `bounds`, contiguous, are at least the\n"
"sums of rows of |I - R A|, the largest of which is `norm` < 1, and `inverse_norm` at least\n"
"those of |R|.");

static PyObject *core_enclose(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    View views[6];
    Py_ssize_t shapes[6][3];
    if (count != 8) {
        PyErr_SetString(PyExc_TypeError, "enclose takes eight arguments");
        return NULL;
    }
    double norm = PyFloat_AsDouble(args[6]), inverse_norm = PyFloat_AsDouble(args[7]);
    if (PyErr_Occurred() || !read_matrices(args, 6, 4, views, shapes))
        return NULL;
    Py_ssize_t n = shapes[0][1];
    int fits = norm < 1.0 && is_contiguous(views + 3, n, 1);
    for (int i = 0; i < 6; i++)
        fits &= has_shape(shapes[i], 1, n, i == 0 || i == 2 ? n : 1);
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "shapes, strides or norm do not fit");
        return NULL;
    }
    double *space = malloc(sizeof(double) * (size_t)(6 * n + 1));
    if (!space)
        return PyErr_NoMemory();
    const Kernels *used = kernels;
    Work work;
    begin(&work, NULL);
    int is_sharp = enclose(n, views, views + 1, views + 2, (const double *)views[3].data,
                           norm, inverse_norm, views + 4, views + 5, space, used,
                           &work.watch);
    leave(&work);
    free(space);
    if (work.has_stopped)
        return NULL;
    return PyBool_FromLong(is_sharp);
}

PyDoc_STRVAR(eliminate_doc,
"eliminate(a, imag, rows, columns, primes, roots, determinants, minors, numerators)\n--\n\n"
"Write the determinant of Z, its leading minors and the numerators of the solution modulo\n"
"each of L primes between 2**23 and 2**24: numerics.prime_fields.eliminate. [A B] is n x\n"
"(n + k), imag too, or None for real matrices; Z = 2**rows [A B] 2**columns holds integers,\n"
"ValueError else. rows, columns, primes and roots are vectors, 1 x their length; the results\n"
"are 1 x L, n x L and n k x L. All are of float64, vectors and results contiguous.");

static PyObject *core_eliminate(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    View views[9];
    Py_ssize_t shapes[9][3];
    if (count != 9) {
        PyErr_SetString(PyExc_TypeError, "eliminate takes nine arguments");
        return NULL;
    }
    int is_complex = args[1] != Py_None;
    if (!read_matrices(args, 1, 1, views, shapes)
        || (is_complex && !read_matrices(args + 1, 1, 1, views + 1, shapes + 1))
        || !read_matrices(args + 2, 7, 4, views + 2, shapes + 2))
        return NULL;
    Py_ssize_t n = shapes[0][1], k = shapes[0][2] - n, primes = shapes[4][2];
    int fits = k >= 0 && primes > 0 && (!is_complex || has_shape(shapes[1], 1, n, n + k))
            && has_shape(shapes[2], 1, 1, n) && has_shape(shapes[3], 1, 1, n + k)
            && has_shape(shapes[4], 1, 1, primes) && has_shape(shapes[5], 1, 1, primes)
            && has_shape(shapes[6], 1, 1, primes) && has_shape(shapes[7], 1, n, primes)
            && has_shape(shapes[8], 1, n * k, primes);
    for (int i = 2; fits && i < 9; i++)
        fits &= is_contiguous(views + i, shapes[i][1], shapes[i][2]);
    for (Py_ssize_t i = 0; fits && i < primes; i++) {
        double p = number_at(views + 4, 0, 0, i);
        fits &= p > 0x1p23 && p < 0x1p24 && p == floor(p);
    }
    for (int i = 2; fits && i < 4; i++)
        for (Py_ssize_t j = 0; fits && j < shapes[i][2]; j++)
            fits &= fabs(number_at(views + i, 0, 0, j)) <= 0x1p15;
    if (!fits) {
        PyErr_SetString(PyExc_ValueError,
                        "shapes, strides, exponents or primes do not fit");
        return NULL;
    }
    Elimination e = {.n = n, .k = k, .count = primes, .real = views[0]};
    if (is_complex)
        e.imag = views[1];
    e.rows = (const double *)views[2].data;
    e.columns = (const double *)views[3].data;
    e.primes = (const double *)views[4].data;
    e.roots = (const double *)views[5].data;
    e.determinants = (double *)views[6].data;
    e.minors = (double *)views[7].data;
    e.numerators = (double *)views[8].data;
    const Kernels *used = kernels;
    Work work;
    begin(&work, NULL);
    Outcome outcome = eliminate(&e, used, &work.watch);
    leave(&work);
    if (work.has_stopped)
        return NULL;
    if (outcome == NO_MEMORY)
        return PyErr_NoMemory();
    if (outcome == NO_INTEGER) {
        PyErr_SetString(PyExc_ValueError, "an entry is no integer");
        return NULL;
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(factorise_band_doc,
"factorise_band(a, lower, upper, columns, factors, pivots)\n--\n\n"
"Write the columns of a banded matrix and those of its factors by elimination with partial\n"
"pivoting; False at a pivot of zero. A, n x n, has `lower` diagonals below the main one and\n"
"`upper` above it, and no other entry is read. The results are contiguous: columns is\n"
"n x (lower + upper + 2), factors n x (2 lower + upper + 2), not written if `lower` is 0, and\n"
"pivots 1 x n integers of 64 bits that are seen as float64.");

static PyObject *core_factorise_band(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    View views[4];
    Py_ssize_t shapes[4][3];
    if (count != 6) {
        PyErr_SetString(PyExc_TypeError, "factorise_band takes six arguments");
        return NULL;
    }
    Py_ssize_t lower = PyLong_AsSsize_t(args[1]), upper = PyLong_AsSsize_t(args[2]);
    if (PyErr_Occurred() || !read_matrices(args, 1, 1, views, shapes)
        || !read_matrices(args + 3, 3, 0, views + 1, shapes + 1))
        return NULL;
    Py_ssize_t n = shapes[0][1];
    int fits = shapes[0][2] == n && lower >= 0 && lower < n && upper >= 0 && upper < n
            && has_shape(shapes[1], 1, n, lower + upper + 2)
            && has_shape(shapes[2], 1, n, 2 * lower + upper + 2)
            && has_shape(shapes[3], 1, 1, n);
    for (int i = 1; fits && i < 4; i++)
        fits &= is_contiguous(views + i, shapes[i][1], shapes[i][2]);
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "shapes, strides or diagonals do not fit");
        return NULL;
    }
    Work work;
    begin(&work, NULL);
    int has_pivots = factorise_band(views, n, lower, upper, (double *)views[1].data,
                                    (double *)views[2].data, (int64_t *)views[3].data,
                                    &work.watch);
    leave(&work);
    if (work.has_stopped)
        return NULL;
    return PyBool_FromLong(has_pivots);
}

PyDoc_STRVAR(banded_products_doc,
"banded_products(columns, factors, pivots, lower, upper, first, q, s, v, images, sizes,\n"
"    gaps, check=None)\n--\n\n"
"Write rows from number `first` on of R Q, |R| S and |fl(R A - I)| V, R the inverse of the\n"
"factors of A that `factorise_band` has written. q, s and v have n rows, and the results\n"
"one number of rows; all are of float64. check is called every tenth of a second or so; an\n"
"error that it raises ends the call.");

static PyObject *core_banded_products(PyObject *self, PyObject *const *args,
                                      Py_ssize_t count)
{
    (void)self;
    View views[9];
    Py_ssize_t shapes[9][3];
    if (count != 12 && count != 13) {
        PyErr_SetString(PyExc_TypeError,
                        "banded_products takes twelve arguments, or thirteen");
        return NULL;
    }
    PyObject *check = count == 13 && args[12] != Py_None ? args[12] : NULL;
    Py_ssize_t lower = PyLong_AsSsize_t(args[3]), upper = PyLong_AsSsize_t(args[4]);
    Py_ssize_t first = PyLong_AsSsize_t(args[5]);
    if (PyErr_Occurred() || !read_matrices(args, 3, 3, views, shapes)
        || !read_matrices(args + 6, 6, 3, views + 3, shapes + 3))
        return NULL;
    Py_ssize_t n = shapes[0][1], rows = shapes[6][1];
    int fits = lower >= 0 && lower < n && upper >= 0 && upper < n && first >= 0
            && first <= n - rows && has_shape(shapes[0], 1, n, lower + upper + 2)
            && has_shape(shapes[1], 1, n, 2 * lower + upper + 2)
            && has_shape(shapes[2], 1, 1, n);
    for (int i = 0; fits && i < 3; i++)
        fits &= is_contiguous(views + i, shapes[i][1], shapes[i][2])
              & has_shape(shapes[i + 3], 1, n, shapes[i + 3][2])
              & has_shape(shapes[i + 6], 1, rows, shapes[i + 3][2]);
    const int64_t *pivots = (const int64_t *)views[2].data;
    for (Py_ssize_t j = 0; fits && lower > 0 && j < n; j++)
        fits &= pivots[j] >= j && pivots[j] <= j + lower && pivots[j] < n;
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "shapes, strides, diagonals or rows do not fit");
        return NULL;
    }
    BandedProducts p = {.first = first, .count = rows, .num_images = shapes[3][2],
                        .num_sizes = shapes[4][2], .num_gaps = shapes[5][2],
                        .q = views[3], .s = views[4], .v = views[5], .images = views[6],
                        .sizes = views[7], .gaps = views[8]};
    p.band = (Band){.n = n, .lower = lower, .upper = upper,
                    .columns = (const double *)views[0].data,
                    .factors = (const double *)views[1].data, .pivots = pivots};
    const Kernels *used = kernels;
    Work work;
    begin(&work, check);
    Outcome outcome = banded_products(&p, used, &work.watch);
    leave(&work);
    if (work.has_stopped)
        return NULL;
    if (outcome == NO_MEMORY)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyDoc_STRVAR(solve_small_doc,
"solve_small(a, b, x, radius, proofs, check=None)\n--\n\n"
"Write the solutions of a stack of small systems, or of least squares for more rows than\n"
"columns, their radii, and for each system whether it is solved (0: no, and nothing is to be\n"
"read; 1; 2: all entries of x are the nearest numbers), its condition, the norm that proves\n"
"it and the number of steps. A is (batch, m, n), B (batch, m, k), x and radius are (batch, n,\n"
"k) and proofs (batch, 1, 4), of float64. check is called as by multiply.");

static PyObject *core_solve_small(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    View views[5];
    Py_ssize_t shapes[5][3];
    if (count != 5 && count != 6) {
        PyErr_SetString(PyExc_TypeError, "solve_small takes five arguments, or six");
        return NULL;
    }
    PyObject *check = count == 6 && args[5] != Py_None ? args[5] : NULL;
    for (int i = 0; i < 5; i++) {
        if (!read_array(args[i], "an operand", i >= 2, views + i, shapes[i]))
            return NULL;
        if (views[i].is_single) {
            PyErr_SetString(PyExc_TypeError, "expected stacks of float64");
            return NULL;
        }
    }
    Py_ssize_t batch = shapes[0][0], m = shapes[0][1], n = shapes[0][2], k = shapes[1][2];
    int fits = m >= n && has_shape(shapes[1], batch, m, k) && has_shape(shapes[2], batch, n, k)
            && has_shape(shapes[3], batch, n, k) && has_shape(shapes[4], batch, 1, 4);
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "shapes do not fit");
        return NULL;
    }
    ptrdiff_t numbers = m == n ? space_of_small(n, k) : space_of_tall(m, n);
    double *space = malloc(sizeof(double) * (size_t)(numbers + 1));
    if (!space)
        return PyErr_NoMemory();
    const Kernels *used = kernels;
    Work work;
    begin(&work, check);
    for (Py_ssize_t z = 0; z < batch && !stops(&work.watch, 4096); z++) {
        View here[5];
        for (int i = 0; i < 5; i++) {
            here[i] = views[i];
            here[i].data += z * views[i].matrix;
        }
        Proof proof = {0.0, 0.0, 0.0};
        double solved = m == n ? solve_small(n, k, here, here + 1, here + 2, here + 3, &proof,
                                             space, used, &work.watch)
                               : solve_tall(m, n, k, here, here + 1, here + 2, here + 3,
                                            &proof, space, used, &work.watch);
        double facts[4] = {solved, proof.condition, proof.norm, proof.steps};
        for (int i = 0; i < 4; i++)
            memcpy(here[4].data + i * here[4].column, facts + i, sizeof *facts);
    }
    leave(&work);
    free(space);
    if (work.has_stopped)
        return NULL;
    Py_RETURN_NONE;
}

/* The answers of `tell` for each matrix of a stack, n x n with n up to MOST_OF_SMALL, in
 * `width` numbers. */
static PyObject *tell_of_stack(PyObject *const *args, Py_ssize_t count, Py_ssize_t width,
                               void (*tell)(ptrdiff_t n, const View *a, double *facts,
                                            double *space, const Kernels *kernels,
                                            Watch *watch))
{
    View a, facts;
    Py_ssize_t shape[3], shape_of_facts[3];
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "two arguments are expected");
        return NULL;
    }
    if (!read_array(args[0], "a", 0, &a, shape)
        || !read_array(args[1], "facts", 1, &facts, shape_of_facts))
        return NULL;
    Py_ssize_t batch = shape[0], n = shape[1];
    if (a.is_single || facts.is_single || n < 1 || n > MOST_OF_SMALL || shape[2] != n
        || !has_shape(shape_of_facts, batch, 1, width)
        || (batch && !is_contiguous(&facts, 1, width))) {
        PyErr_SetString(PyExc_ValueError, "shapes or dtypes do not fit");
        return NULL;
    }
    double *space = malloc(sizeof(double) * (size_t)space_of_factors(n));
    if (!space)
        return PyErr_NoMemory();
    const Kernels *used = kernels;
    Work work;
    begin(&work, NULL);
    for (Py_ssize_t z = 0; z < batch && !stops(&work.watch, 1024 + 8 * n * n * n); z++) {
        View here = a;
        here.data += z * a.matrix;
        double *of_matrix = (double *)(facts.data + z * facts.matrix);
        tell(n, &here, of_matrix, space, used, &work.watch);
    }
    leave(&work);
    free(space);
    if (work.has_stopped)
        return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(determinants_doc,
"determinants(a, bounds)\n--\n\n"
"Write for each matrix of a stack, n x n with n up to 128, 1, the two neighbours between\n"
"which its determinant lies, equal where it is a double, and the exponent of their unit; 0\n"
"where they are not certain. A is (batch, n, n) and `bounds` (batch, 1, 4), of float64.");

static PyObject *core_determinants(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    return tell_of_stack(args, count, 4, tell_determinant);
}

PyDoc_STRVAR(definite_doc,
"definite(a, answers)\n--\n\n"
"Write for each matrix of a stack, n x n with n up to 128, 1 where it is symmetric and\n"
"positive definite, 0 where it is symmetric and not definite, 2 where that is not certain.\n"
"A is (batch, n, n) and `answers` (batch, 1, 1), of float64.");

static PyObject *core_definite(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    return tell_of_stack(args, count, 1, tell_definiteness);
}

PyDoc_STRVAR(factor_panel_doc,
"factor_panel(panel, order)\n--\n\n"
"Write L and U of P A = L U over the m x n panel A, m >= n, by elimination with partial\n"
"pivoting, and the rows of A in their new order to `order`, 1 x m, of int64 seen as\n"
"float64. The rows of A are contiguous.");

static PyObject *core_factor_panel(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    View views[2];
    Py_ssize_t shapes[2][3];
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "factor_panel takes two arguments");
        return NULL;
    }
    if (!read_matrices(args, 2, 0, views, shapes))
        return NULL;
    Py_ssize_t m = shapes[0][1], n = shapes[0][2];
    if (m < n || !has_shape(shapes[1], 1, 1, m) || views[0].column != sizeof(double)
        || views[1].column != sizeof(double)) {
        PyErr_SetString(PyExc_ValueError, "shapes or strides do not fit");
        return NULL;
    }
    Work work;
    begin(&work, NULL);
    factor_panel(m, n, views, (int64_t *)views[1].data, &work.watch);
    leave(&work);
    if (work.has_stopped)
        return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(use_doc,
"use(name)\n--\n\nChoose a set of instructions by its name, for tests.");

static PyObject *core_use(PyObject *self, PyObject *name)
{
    (void)self;
    for (const Kernels *const *set = kernels_here(); *set; set++)
        if (PyUnicode_CompareWithASCIIString(name, (*set)->name) == 0) {
            kernels = *set;
            Py_RETURN_NONE;
        }
    PyErr_Format(PyExc_ValueError, "this machine has no instructions %R", name);
    return NULL;
}

/* ---- the module ----------------------------------------------------------------- */

/* Arithmetic that compiler flags may break: contracting a b + c, or reordering sums, changes
 * one of these results. Volatile variables make the processor multiply, not the compiler. */
static int arithmetic_is_sound(const Kernels *f)
{
    volatile double tiny = 0x1p-60, one = 1.0, next = 1.0 + 0x1p-52;
    double square = next * next;
    if (fma(next, next, -square) != 0x1p-104)
        return 0; /* an fma that is rounded twice */
    double s, e;
    two_sum(one, tiny, &s, &e);
    if (s != 1.0 || e != 0x1p-60)
        return 0;

    /* x^2 - x^2 + 2^-60 x with x = 1 + 2^-30: two words hold the sum, and the last term
     * lies below the unit of x^2. */
    volatile double x = 1.0 + 0x1p-30;
    double a[40] = {0.0}, b[40] = {0.0}, hi, mid, lo;
    a[0] = b[0] = x;
    a[17] = -x;
    b[17] = x;
    a[35] = tiny;
    b[35] = x;
    f->dot_in_two(40, a, b, 3.0 * 2.0, &hi, &lo);
    if (hi + lo != 0x1p-60 * x)
        return 0;
    /* (1 + 2^-30)^2 to its last bit, 2^-60. */
    f->dot_in_two(1, b, b, 3.0 * 2.0, &hi, &lo);
    if (hi != 1.0 + 0x1p-29 || lo != 0x1p-60)
        return 0;
    f->dot_in_three(40, a, b, 3.0 * 2.0, &hi, &mid, &lo);
    return (hi + mid) + lo == 0x1p-60 * x;
}

static PyMethodDef methods[] = {
    {"multiply", (PyCFunction)(void (*)(void))core_multiply, METH_FASTCALL, multiply_doc},
    {"to_doubles", (PyCFunction)(void (*)(void))core_to_doubles, METH_FASTCALL,
     to_doubles_doc},
    {"round_product", (PyCFunction)(void (*)(void))core_round_product, METH_FASTCALL,
     round_product_doc},
    {"finish", (PyCFunction)(void (*)(void))core_finish, METH_FASTCALL, finish_doc},
    {"are_ordinary", (PyCFunction)(void (*)(void))core_are_ordinary, METH_FASTCALL,
     are_ordinary_doc},
    {"combine", (PyCFunction)(void (*)(void))core_combine, METH_FASTCALL, combine_doc},
    {"combine_pair", (PyCFunction)(void (*)(void))core_combine_pair, METH_FASTCALL,
     combine_pair_doc},
    {"magnitude_product", (PyCFunction)(void (*)(void))core_magnitude_product,
     METH_FASTCALL, magnitude_product_doc},
    {"equilibrate", (PyCFunction)(void (*)(void))core_equilibrate, METH_FASTCALL,
     equilibrate_doc},
    {"enclose", (PyCFunction)(void (*)(void))core_enclose, METH_FASTCALL, enclose_doc},
    {"eliminate", (PyCFunction)(void (*)(void))core_eliminate, METH_FASTCALL, eliminate_doc},
    {"factorise_band", (PyCFunction)(void (*)(void))core_factorise_band, METH_FASTCALL,
     factorise_band_doc},
    {"banded_products", (PyCFunction)(void (*)(void))core_banded_products, METH_FASTCALL,
     banded_products_doc},
    {"solve_small", (PyCFunction)(void (*)(void))core_solve_small, METH_FASTCALL,
     solve_small_doc},
    {"determinants", (PyCFunction)(void (*)(void))core_determinants, METH_FASTCALL,
     determinants_doc},
    {"definite", (PyCFunction)(void (*)(void))core_definite, METH_FASTCALL, definite_doc},
    {"factor_panel", (PyCFunction)(void (*)(void))core_factor_panel, METH_FASTCALL,
     factor_panel_doc},
    {"use", core_use, METH_O, use_doc},
    {NULL, NULL, 0, NULL},
};

static int execute(PyObject *module)
{
    Environment before = enter_ieee();
    int is_sound = 1, count = 0;
    const Kernels *const *sets = kernels_here();
    for (; sets[count]; count++)
        is_sound &= arithmetic_is_sound(sets[count]);
    leave_ieee(before);
    if (!is_sound) {
        PyErr_SetString(PyExc_ImportError,
                        "the compiler changed the arithmetic of hifigemm._core");
        return -1;
    }
    kernels = sets[0];

    PyObject *names = PyTuple_New(count);
    if (!names)
        return -1;
    for (int i = 0; i < count; i++) {
        PyObject *name = PyUnicode_FromString(sets[i]->name);
        if (!name || PyTuple_SetItem(names, i, name) < 0) {
            Py_DECREF(names);
            return -1;
        }
    }
    int status = PyModule_AddObjectRef(module, "instructions", names);
    Py_DECREF(names);
    return status;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, execute},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "hifigemm._core",
    .m_doc = "Correctly rounded sums of products: see core/core.h in the sources.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&definition);
}
