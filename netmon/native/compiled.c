/* SPDX-License-Identifier: Apache-2.0
 *
 * What numpy takes many passes for, in one. Each function has a twin in Python beside its caller, which serves where
 * this is not built. Arrays come through the buffer protocol; what their lengths do not allow raises ValueError, and
 * nothing outside them is read or written.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* --- arrays */

#define MOST_ARRAYS 32

struct arrays {
	Py_buffer views[MOST_ARRAYS];
	int count;
};

static void release(struct arrays *arrays)
{
	while (arrays->count)
		PyBuffer_Release(&arrays->views[--arrays->count]);
}

/* The memory of an array of so many items of so many bytes, until `release`. NULL: raised. */
static void *array(struct arrays *arrays, PyObject *object, Py_ssize_t items, Py_ssize_t size, int writable)
{
	if (arrays->count == MOST_ARRAYS) {
		PyErr_SetString(PyExc_ValueError, "too many arrays");
		return NULL;
	}
	Py_buffer *view = &arrays->views[arrays->count];
	if (PyObject_GetBuffer(object, view, PyBUF_ND | writable))
		return NULL;
	arrays->count++;
	if (view->itemsize != size || view->len / size != items) {
		PyErr_Format(PyExc_ValueError, "an array of %zd items of %zd bytes where %zd of %zd are wanted",
			     view->len / size, view->itemsize, items, size);
		return NULL;
	}
	return view->len ? view->buf : (void *)"";
}

/* Items of a tuple as arrays, of so many items of sizes[i] bytes; 0: done, -1: raised. */
static int tuple_arrays(struct arrays *arrays, PyObject *tuple, Py_ssize_t items, const char *sizes, void **out)
{
	Py_ssize_t count = (Py_ssize_t)strlen(sizes);
	if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != count) {
		PyErr_Format(PyExc_ValueError, "no tuple of %zd arrays", count);
		return -1;
	}
	for (Py_ssize_t i = 0; i < count; i++)
		if (!(out[i] = array(arrays, PyTuple_GetItem(tuple, i), items, sizes[i] - '0', PyBUF_WRITABLE)))
			return -1;
	return 0;
}

/* --- columns of numbers as they come: a byte that says how many bytes a number has, then the planes of these */

struct column {
	const uint8_t *planes;
	int width;
};

/* How many columns are found; `wanted` and no more, or the data is not good. */
static int split_columns(const uint8_t *data, uint64_t length, int wanted, uint64_t rows, struct column *columns)
{
	uint64_t at = 0;
	for (int i = 0; i < wanted; i++) {
		if (at >= length)
			return i;
		int width = data[at++];
		if (width > 2 && width != 4 && width != 8)
			return i;
		if (width && rows > (length - at) / (uint64_t)width)
			return i;
		columns[i].planes = data + at;
		columns[i].width = width;
		at += (uint64_t)width * rows;
	}
	return at == length ? wanted : wanted + 1;
}

#define BLOCK 512

/* Numbers from `first` on, at most BLOCK. */
static void numbers(const struct column *column, uint64_t rows, uint64_t first, uint64_t count, uint64_t *out)
{
	const uint8_t *plane = column->planes + first;
	memset(out, 0, count * sizeof *out);
	for (int shift = 0; shift < 8 * column->width; shift += 8, plane += rows)
		for (uint64_t i = 0; i < count; i++)
			out[i] |= (uint64_t)plane[i] << shift;
}

static void numbers32(const struct column *column, uint64_t rows, uint64_t first, uint64_t count, uint32_t *out)
{
	const uint8_t *plane = column->planes + first;
	int width = column->width > 4 ? 4 : column->width;
	memset(out, 0, count * sizeof *out);
	for (int shift = 0; shift < 8 * width; shift += 8, plane += rows)
		for (uint64_t i = 0; i < count; i++)
			out[i] |= (uint32_t)plane[i] << shift;
}

static PyObject *column_widths(PyObject *self, PyObject *args)
{
	Py_buffer view;
	int wanted;
	unsigned long long rows;
	(void)self;
	if (!PyArg_ParseTuple(args, "y*iK", &view, &wanted, &rows))
		return NULL;
	struct column columns[MOST_ARRAYS];
	PyObject *found = NULL;
	if (wanted < 0 || wanted > MOST_ARRAYS) {
		PyErr_SetString(PyExc_ValueError, "too many columns");
	} else if (split_columns(view.buf, (uint64_t)view.len, wanted, rows, columns) != wanted) {
		found = Py_None;
		Py_INCREF(found);
	} else {
		uint8_t widths[MOST_ARRAYS];
		for (int i = 0; i < wanted; i++)
			widths[i] = (uint8_t)columns[i].width;
		found = PyBytes_FromStringAndSize((const char *)widths, wanted);
	}
	PyBuffer_Release(&view);
	return found;
}

/* --- bucket rows of many messages */

enum { RUNS = 4, COLUMNS = 4, COLUMNS_COARSE = 7 }; /* of rows: before those of plain counts */

#define ROW_ARRAYS "448844444" /* bytes of a number in each column of rows, plain counts left out */
#define MOST_PLAIN 16

struct rows_out {
	int32_t *batch;
	uint32_t *flow_id;
	uint64_t *start_ns;
	int64_t *bucket_ns;
	uint32_t *packets, *wire, *payload, *peak, *busy;
	void **plain; /* of uint32_t */
	int plain_count;
};

struct runs_out {
	int64_t *batch;
	uint32_t *flow_id;
	int64_t *rows;
};

struct message {
	uint64_t rows, flows, bucket_ns, base_ns, unit_ns;
	int coarse;
	int32_t batch;
};

/* The runs of a message. Whether they have its number of rows; if not, the first one is made to. */
static int read_runs(const struct message *message, const struct column *columns, uint64_t at,
		     const struct runs_out *out)
{
	uint64_t left = message->rows;
	int good = 1;
	for (uint64_t first = 0; first < message->flows; first += BLOCK) {
		uint64_t count = message->flows - first < BLOCK ? message->flows - first : BLOCK, rows[BLOCK];
		numbers32(&columns[0], message->flows, first, count, out->flow_id + at + first);
		numbers(&columns[1], message->flows, first, count, rows);
		for (uint64_t i = 0; i < count; i++) {
			good = good && rows[i] <= left;
			if (good)
				left -= rows[i];
			out->batch[at + first + i] = message->batch;
			out->rows[at + first + i] = (int64_t)rows[i];
		}
	}
	if (good && !left)
		return 1;
	memset(out->rows + at, 0, message->flows * sizeof *out->rows);
	out->rows[at] = (int64_t)message->rows;
	return 0;
}

/* The rows of a message whose runs have been read; the latest start, in units. */
static uint64_t read_rows(const struct message *message, const struct column *run_columns, const struct column *columns,
			  const struct runs_out *runs, uint64_t run, const struct rows_out *out, uint64_t at)
{
	uint64_t latest = 0, left = 0, of = 0;
	uint32_t w = 0, h = 0;
	for (uint64_t first = 0; first < message->rows; first += BLOCK) {
		uint64_t count = message->rows - first < BLOCK ? message->rows - first : BLOCK, start[BLOCK];
		uint32_t packets[BLOCK], lack[BLOCK], headers[BLOCK], pieces[BLOCK], less[BLOCK], busy[BLOCK];
		numbers(&columns[0], message->rows, first, count, start);
		numbers32(&columns[1], message->rows, first, count, packets);
		numbers32(&columns[2], message->rows, first, count, lack);
		numbers32(&columns[3], message->rows, first, count, headers);
		if (message->coarse) {
			numbers32(&columns[4], message->rows, first, count, pieces);
			numbers32(&columns[5], message->rows, first, count, less);
			numbers32(&columns[6], message->rows, first, count, busy);
		}
		for (int i = 0; i < out->plain_count; i++)
			numbers32(&columns[(message->coarse ? COLUMNS_COARSE : COLUMNS) + i], message->rows, first,
				  count, (uint32_t *)out->plain[i] + at);
		for (uint64_t i = 0; i < count; i++, at++) {
			while (!left) { /* ends: the runs have as many rows as the message */
				left = (uint64_t)runs->rows[run + of];
				numbers32(&run_columns[2], message->flows, of, 1, &w);
				numbers32(&run_columns[3], message->flows, of, 1, &h);
				of++;
			}
			left--;
			uint32_t wire = packets[i] * w - lack[i];
			out->batch[at] = message->batch;
			out->flow_id[at] = runs->flow_id[run + of - 1];
			out->start_ns[at] = start[i] * message->unit_ns + message->base_ns;
			out->bucket_ns[at] = (int64_t)message->bucket_ns;
			out->packets[at] = packets[i];
			out->wire[at] = wire;
			out->payload[at] = wire - (packets[i] * h - headers[i]);
			out->peak[at] = message->coarse ? pieces[i] * w - less[i] : wire;
			out->busy[at] = message->coarse ? busy[i] : 1;
			if (start[i] > latest)
				latest = start[i];
		}
	}
	return latest;
}

/* Places in a Split of netmon.wire.batch_fields. */
enum {
	ROWS_AT,
	FLOWS_AT,
	BUCKET_AT,
	BASE_AT,
	UNIT_AT,
	COARSE_AT,
	RUNS_AT,
	COLUMNS_AT = RUNS_AT + 2,
	FIELDS = COLUMNS_AT + 2
};

/* A Split of netmon.wire.batch_fields, checked but for its columns; 0: done, -1: raised. */
static int read_split(PyObject *split, struct message *message)
{
	uint64_t *fields[] = {&message->rows, &message->flows, &message->bucket_ns, &message->base_ns,
			      &message->unit_ns};
	if (!split || !PyTuple_Check(split) || PyTuple_Size(split) != FIELDS) {
		PyErr_SetString(PyExc_ValueError, "no Split");
		return -1;
	}
	for (Py_ssize_t i = ROWS_AT; i <= UNIT_AT; i++) {
		*fields[i] = PyLong_AsUnsignedLongLong(PyTuple_GetItem(split, i));
		if (PyErr_Occurred())
			return -1;
	}
	message->coarse = PyTuple_GetItem(split, COARSE_AT) == Py_True;
	if (message->flows && message->flows <= message->rows && message->rows <= INT32_MAX)
		return 0;
	PyErr_SetString(PyExc_ValueError, "a message of no rows, too many, or more flows than rows");
	return -1;
}

/* Reads one message at these places of the arrays; 0: done, -1: raised. */
static int read_message(PyObject *split, struct message *message, uint64_t rows, uint64_t runs,
			const struct rows_out *rows_out, const struct runs_out *runs_out, uint64_t *latest,
			uint8_t *good)
{
	Py_buffer run_data, data;
	struct column run_columns[RUNS], columns[MOST_ARRAYS];
	int wanted = (message->coarse ? COLUMNS_COARSE : COLUMNS) + rows_out->plain_count, done = -1;
	if (PyObject_GetBuffer(PyTuple_GetItem(split, RUNS_AT), &run_data, PyBUF_SIMPLE))
		return -1;
	if (!PyObject_GetBuffer(PyTuple_GetItem(split, COLUMNS_AT), &data, PyBUF_SIMPLE)) {
		if (split_columns(run_data.buf, (uint64_t)run_data.len, RUNS, message->flows, run_columns) == RUNS &&
		    split_columns(data.buf, (uint64_t)data.len, wanted, message->rows, columns) == wanted) {
			*good = (uint8_t)read_runs(message, run_columns, runs, runs_out);
			*latest = read_rows(message, run_columns, columns, runs_out, runs, rows_out, rows);
			done = 0;
		} else {
			PyErr_SetString(PyExc_ValueError, "columns that are cut short");
		}
		PyBuffer_Release(&data);
	}
	PyBuffer_Release(&run_data);
	return done;
}

/* join_buckets(splits, batches, rows, runs, latest, good): fills the arrays; see netmon.wire.batch_fields. */
static PyObject *join_buckets(PyObject *self, PyObject *args)
{
	PyObject *splits, *batches, *rows, *runs, *latest_array, *good_array, *result = NULL;
	(void)self;
	if (!PyArg_ParseTuple(args, "O!OO!O!OO", &PyList_Type, &splits, &batches, &PyTuple_Type, &rows, &PyTuple_Type,
			      &runs, &latest_array, &good_array))
		return NULL;
	struct arrays arrays = {.count = 0};
	Py_ssize_t count = PyList_Size(splits), total_rows = 0, total_runs = 0;
	struct message message = {0};
	for (Py_ssize_t i = 0; i < count; i++) {
		if (read_split(PyList_GetItem(splits, i), &message))
			return NULL;
		total_rows += (Py_ssize_t)message.rows;
		total_runs += (Py_ssize_t)message.flows;
	}
	void *row_arrays[MOST_PLAIN + sizeof ROW_ARRAYS], *run_arrays[3];
	char sizes[MOST_PLAIN + sizeof ROW_ARRAYS] = ROW_ARRAYS;
	Py_ssize_t plain = PyTuple_Size(rows) - (Py_ssize_t)strlen(ROW_ARRAYS);
	if (plain > MOST_PLAIN) {
		PyErr_SetString(PyExc_ValueError, "too many counts");
		return NULL;
	}
	if (plain > 0)
		memset(sizes + strlen(ROW_ARRAYS), '4', (size_t)plain);
	const int32_t *batch = array(&arrays, batches, count, 4, 0);
	uint64_t *latest = batch ? array(&arrays, latest_array, count, 8, PyBUF_WRITABLE) : NULL;
	uint8_t *good = latest ? array(&arrays, good_array, count, 1, PyBUF_WRITABLE) : NULL;
	if (!good || tuple_arrays(&arrays, rows, total_rows, sizes, row_arrays) ||
	    tuple_arrays(&arrays, runs, total_runs, "848", run_arrays))
		goto out;
	struct rows_out rows_out = {
		row_arrays[0], row_arrays[1], row_arrays[2], row_arrays[3], row_arrays[4],
		row_arrays[5], row_arrays[6], row_arrays[7], row_arrays[8], row_arrays + strlen(ROW_ARRAYS),
		(int)plain};
	struct runs_out runs_out = {run_arrays[0], run_arrays[1], run_arrays[2]};
	Py_ssize_t row = 0, run = 0;
	for (Py_ssize_t i = 0; i < count; i++) {
		PyObject *split = PyList_GetItem(splits, i);
		if (read_split(split, &message))
			goto out;
		message.batch = batch[i];
		if (read_message(split, &message, (uint64_t)row, (uint64_t)run, &rows_out, &runs_out, &latest[i],
				 &good[i]))
			goto out;
		row += (Py_ssize_t)message.rows, run += (Py_ssize_t)message.flows;
	}
	result = Py_None;
	Py_INCREF(result);
out:
	release(&arrays);
	return result;
}

/* --- sums of payload */

#define MOST_KEYS 256 /* of a group, that are looked through one by one */

/* sum_runs(host, label, count, key, payload, sums): payload of rows, which follow each other in runs of `count`, summed
 * by the host and label of the run and the row's key, into four arrays as long as key. How many sums there are; -1:
 * hosts and labels do not ascend, or there are too many keys. See netmon.dl.history. */
static PyObject *sum_runs(PyObject *self, PyObject *args)
{
	PyObject *objects[5], *sums;
	(void)self;
	if (!PyArg_ParseTuple(args, "OOOOOO", &objects[0], &objects[1], &objects[2], &objects[3], &objects[4], &sums))
		return NULL;
	Py_ssize_t runs = PyObject_Size(objects[0]), rows = PyObject_Size(objects[3]);
	if (runs < 0 || rows < 0)
		return NULL;
	struct arrays arrays = {.count = 0};
	const int64_t *in[5];
	void *out[4];
	long found = -1;
	for (int i = 0; i < 5; i++)
		if (!(in[i] = array(&arrays, objects[i], i < 3 ? runs : rows, 8, 0)))
			goto out;
	if (tuple_arrays(&arrays, sums, rows, "8888", out))
		goto out;
	const int64_t *host = in[0], *label = in[1], *count = in[2], *key = in[3], *payload = in[4];
	int64_t *sum_host = out[0], *sum_label = out[1], *sum_key = out[2], *sum = out[3];
	Py_ssize_t row = 0, first = 0, end = 0; /* the sums of this group are first to end */
	for (Py_ssize_t run = 0; run < runs; run++) {
		if (count[run] < 0 || count[run] > rows - row) {
			PyErr_SetString(PyExc_ValueError, "runs of more rows than there are");
			goto out;
		}
		if (run && (host[run] != host[run - 1] || label[run] != label[run - 1])) {
			if (host[run] < host[run - 1] || (host[run] == host[run - 1] && label[run] < label[run - 1]))
				goto out;
			first = end;
		}
		for (Py_ssize_t last = row + (Py_ssize_t)count[run]; row < last; row++) {
			if (payload[row] <= 0)
				continue;
			Py_ssize_t at = end;
			while (at > first && sum_key[at - 1] > key[row])
				at--;
			if (at > first && sum_key[at - 1] == key[row]) {
				sum[at - 1] = (int64_t)((uint64_t)sum[at - 1] + (uint64_t)payload[row]);
				continue;
			}
			if (end - first == MOST_KEYS)
				goto out;
			memmove(sum_key + at + 1, sum_key + at, (size_t)(end - at) * sizeof *sum_key);
			memmove(sum + at + 1, sum + at, (size_t)(end - at) * sizeof *sum);
			sum_host[end] = host[run], sum_label[end] = label[run];
			sum_key[at] = key[row], sum[at] = payload[row];
			end++;
		}
	}
	found = (long)end;
out:
	release(&arrays);
	return PyErr_Occurred() ? NULL : PyLong_FromLong(found);
}

/* --- rows of full resolution into coarser ones */

struct fine_row { /* BUCKET */
	uint64_t start;
	uint32_t wire, payload, flow, packets;
};

struct coarse_row { /* COARSE */
	uint64_t start;
	uint32_t wire, payload, flow, packets, peak, busy;
};

/* The flow, above, and the number of the bin. */
static uint64_t bin_of(uint64_t key, uint32_t buckets)
{
	return (key >> 32 << 32) | (uint32_t)key / buckets;
}

/* A key, and the number of its row. */
struct keyed {
	uint64_t key;
	uint32_t row;
};

#define DIGIT 11

/* In ascending order of the keys, by digits, the lowest first; spare: as many. Returns where they are then. */
static struct keyed *sort_keys(struct keyed *keys, struct keyed *spare, Py_ssize_t count)
{
	uint64_t differing = 0;
	for (Py_ssize_t i = 0; i < count; i++)
		differing |= keys[i].key ^ keys[0].key;
	for (int shift = 0; shift < 64 && differing >> shift; shift += DIGIT) {
		uint32_t places[1 << DIGIT] = {0}, place = 0, digits = (1 << DIGIT) - 1;
		if (!(differing >> shift & digits))
			continue;
		for (Py_ssize_t i = 0; i < count; i++)
			places[keys[i].key >> shift & digits]++;
		for (uint32_t digit = 0; digit <= digits; digit++) {
			uint32_t of_digit = places[digit];
			places[digit] = place;
			place += of_digit;
		}
		for (Py_ssize_t i = 0; i < count; i++)
			spare[places[keys[i].key >> shift & digits]++] = keys[i];
		struct keyed *sorted = spare;
		spare = keys;
		keys = sorted;
	}
	return keys;
}

/* sum_bins(rows, base, bucket, width): rows as BUCKET, none of which begins before base, summed by flow and by bins of
 * so many ns: rows as COARSE, in memory of their own. See netmon.dl.coarse. */
static PyObject *sum_bins(PyObject *self, PyObject *args)
{
	PyObject *object, *result = NULL;
	unsigned long long base, bucket, width;
	(void)self;
	if (!PyArg_ParseTuple(args, "OKKK", &object, &base, &bucket, &width))
		return NULL;
	Py_ssize_t count = PyObject_Size(object), bins = 0;
	if (count < 0)
		return NULL;
	struct arrays arrays = {.count = 0};
	struct keyed *keys = NULL, *sorted;
	const struct fine_row *rows = array(&arrays, object, count, sizeof *rows, 0);
	if (!rows)
		goto out;
	if (count > INT32_MAX || !bucket || width / bucket < 1 || width / bucket > UINT32_MAX) {
		PyErr_SetString(PyExc_ValueError, "no bins, or too many rows");
		goto out;
	}
	keys = PyMem_Malloc(2 * (size_t)count * sizeof *keys + 1);
	if (!keys) {
		PyErr_NoMemory();
		goto out;
	}
	uint32_t buckets = (uint32_t)(width / bucket);
	for (Py_ssize_t i = 0; i < count; i++) {
		uint64_t since = rows[i].start - base;
		uint32_t number = (since | bucket) <= UINT32_MAX ? (uint32_t)since / (uint32_t)bucket
								 : (uint32_t)(since / bucket);
		keys[i] = (struct keyed){(uint64_t)rows[i].flow << 32 | number, (uint32_t)i};
	}
	sorted = sort_keys(keys, keys + count, count);
	uint64_t bin = 0, before = 0;
	for (Py_ssize_t i = 0; i < count; i++, before = bin) {
		bin = bin_of(sorted[i].key, buckets);
		bins += !i || bin != before;
	}
	result = PyByteArray_FromStringAndSize(NULL, bins * (Py_ssize_t)sizeof(struct coarse_row));
	if (!result)
		goto out;
	struct coarse_row *coarse = (struct coarse_row *)(void *)PyByteArray_AsString(result);
	uint32_t bucket_bytes = 0;
	for (Py_ssize_t i = 0; i < count; i++, before = bin) {
		const struct fine_row *row = &rows[sorted[i].row];
		bin = bin_of(sorted[i].key, buckets);
		if (!i || bin != before) {
			coarse += i != 0;
			*coarse = (struct coarse_row){.start = base + (uint32_t)bin * width, .flow = row->flow};
		}
		if (!coarse->busy || sorted[i].key != sorted[i - 1].key) {
			coarse->busy++;
			bucket_bytes = 0;
		}
		bucket_bytes += row->wire;
		if (bucket_bytes > coarse->peak)
			coarse->peak = bucket_bytes;
		coarse->wire += row->wire;
		coarse->payload += row->payload;
		coarse->packets += row->packets;
	}
out:
	PyMem_Free(keys);
	release(&arrays);
	return result;
}

/* --- rows as the columns of a message, the way back of join_buckets */

/* A column at `out`, in as few planes as its numbers need; where the next one begins. */
static uint8_t *put_column(uint8_t *out, const uint32_t *low, const uint32_t *high, Py_ssize_t count)
{
	uint32_t any[2] = {0, 0};
	for (Py_ssize_t i = 0; i < count; i++)
		any[0] |= low[i];
	for (Py_ssize_t i = 0; high && i < count; i++)
		any[1] |= high[i];
	int width = any[1] ? 8 : any[0] >> 16 ? 4 : any[0] >> 8 ? 2 : any[0] ? 1 : 0;
	*out++ = (uint8_t)width;
	for (int byte = 0; byte < width; byte++, out += count) {
		const uint32_t *half = byte < 4 ? low : high;
		int shift = 8 * (byte & 3);
		for (Py_ssize_t i = 0; i < count; i++)
			out[i] = (uint8_t)(half[i] >> shift);
	}
	return out;
}

static uint32_t each_of(uint32_t amount, uint32_t parts)
{
	return parts ? (amount + (parts - 1)) / parts : amount;
}

static const struct fine_row *row_at(const uint8_t *rows, Py_ssize_t size, uint32_t number)
{
	return (const void *)(rows + number * size);
}

/* Rows in `order`, or as they come where it is NULL, sorted by so many bits of their flows' numbers from `least` on,
 * as they were among themselves; -1: no memory. */
static int sort_by(const uint8_t *rows, Py_ssize_t size, uint32_t count, const uint32_t *order, uint32_t least,
		   int shift, uint32_t digits, uint32_t *sorted)
{
	uint32_t *places = PyMem_Calloc(digits, sizeof *places), sum = 0;
	if (!places)
		return -1;
	for (uint32_t i = 0; i < count; i++)
		places[(row_at(rows, size, i)->flow - least) >> shift & 0xffff]++;
	for (uint32_t digit = 0; digit < digits; digit++) {
		uint32_t own = places[digit];
		places[digit] = sum;
		sum += own;
	}
	for (uint32_t i = 0; i < count; i++) {
		uint32_t row = order ? order[i] : i;
		sorted[places[(row_at(rows, size, row)->flow - least) >> shift & 0xffff]++] = row;
	}
	PyMem_Free(places);
	return 0;
}

/* The rows in an order in which those of a flow follow each other; spare: room for another one; -1: no memory. */
static int by_flow(const uint8_t *rows, Py_ssize_t size, uint32_t count, uint32_t *order, uint32_t *spare)
{
	uint32_t least = UINT32_MAX, most = 0;
	for (uint32_t i = 0; i < count; i++) {
		uint32_t flow = row_at(rows, size, i)->flow;
		least = flow < least ? flow : least;
		most = flow > most ? flow : most;
	}
	if (most - least <= 0xffff || !count)
		return sort_by(rows, size, count, NULL, least, 0, count ? most - least + 1 : 1, order);
	return sort_by(rows, size, count, NULL, least, 0, 0x10000, spare) ||
	       sort_by(rows, size, count, spare, least, 16, 0x10000, order);
}

/* The largest packet of each run of a flow's rows, and its headers; how many runs. */
static Py_ssize_t find_runs(const uint8_t *rows, Py_ssize_t size, const uint32_t *order, Py_ssize_t count,
			    uint32_t *runs[4])
{
	Py_ssize_t run = -1;
	for (Py_ssize_t i = 0; i < count; i++) {
		const struct fine_row *row = row_at(rows, size, order[i]);
		if (run < 0 || row->flow != runs[0][run]) {
			run++;
			runs[0][run] = row->flow;
			runs[1][run] = runs[2][run] = runs[3][run] = 0;
		}
		runs[1][run]++;
		uint32_t wire = each_of(row->wire, row->packets),
			 header = each_of(row->wire - row->payload, row->packets);
		if (wire > runs[2][run])
			runs[2][run] = wire;
		if (header > runs[3][run])
			runs[3][run] = header;
	}
	return run + 1;
}

/* Of what pack_rows needs, arrays of 32 bits, as long as there are rows: columns, then what they are made from. */
enum {
	STARTS,
	PACKETS,
	WIRE,
	HEADERS,
	PIECES,
	PEAKS,
	BUSY,
	HIGHER_STARTS,
	OF_RUNS,
	ORDER = OF_RUNS + 4,
	SPARE,
	ARRAYS
};

/* pack_rows(rows, coarse, bucket): rows as BUCKET or COARSE, those of a flow one after the other, as (flows, base, unit,
 * runs, columns) of a message. See netmon.wire.buckets. */
static PyObject *pack_rows(PyObject *self, PyObject *args)
{
	PyObject *object, *packed[2] = {NULL, NULL}, *result = NULL;
	unsigned long long bucket;
	int coarse;
	(void)self;
	if (!PyArg_ParseTuple(args, "OpK", &object, &coarse, &bucket))
		return NULL;
	Py_ssize_t count = PyObject_Size(object);
	Py_ssize_t size = coarse ? sizeof(struct coarse_row) : sizeof(struct fine_row);
	if (count < 0)
		return NULL;
	struct arrays arrays = {.count = 0};
	uint32_t *columns[ARRAYS], *scratch = NULL;
	const uint8_t *rows = array(&arrays, object, count, size, 0);
	if (!rows)
		goto out;
	if (count > INT32_MAX) {
		PyErr_SetString(PyExc_ValueError, "too many rows");
		goto out;
	}
	uint64_t base = UINT64_MAX, last = 0, unit = bucket <= UINT32_MAX ? bucket : 0;
	for (Py_ssize_t i = 0; i < count; i++) {
		uint64_t start = row_at(rows, size, (uint32_t)i)->start;
		base = start < base ? start : base;
		last = start > last ? start : last;
	}
	int near = count && last - base <= UINT32_MAX;
	for (Py_ssize_t i = 0; i < count && unit; i++) { /* dividing 32 bits takes a fraction of the time */
		uint64_t since = row_at(rows, size, (uint32_t)i)->start - base;
		if (near ? (uint32_t)since % (uint32_t)unit : since % unit)
			unit = 0;
	}
	unit = unit ? unit : 1;
	scratch = PyMem_Malloc((size_t)count * ARRAYS * sizeof *scratch + 1);
	if (!scratch) {
		PyErr_NoMemory();
		goto out;
	}
	for (int i = 0; i < ARRAYS; i++)
		columns[i] = scratch + i * count;
	uint32_t **runs = columns + OF_RUNS, *order = columns[ORDER];
	if (by_flow(rows, size, (uint32_t)count, order, columns[SPARE])) {
		PyErr_NoMemory();
		goto out;
	}
	Py_ssize_t flows = find_runs(rows, size, order, count, runs), run = 0, end = 0;
	for (Py_ssize_t i = 0; i < count; i++) {
		const struct fine_row *row = row_at(rows, size, order[i]);
		if (i == end)
			end += runs[1][run++];
		uint32_t wire = runs[2][run - 1], header = runs[3][run - 1];
		uint64_t since = row->start - base;
		since = unit == 1 ? since : near ? (uint32_t)since / (uint32_t)unit : since / unit;
		columns[STARTS][i] = (uint32_t)since;
		if (!near)
			columns[HIGHER_STARTS][i] = (uint32_t)(since >> 32);
		columns[PACKETS][i] = row->packets;
		columns[WIRE][i] = row->packets * wire - row->wire;
		columns[HEADERS][i] = row->packets * header - (row->wire - row->payload);
		if (coarse) {
			const struct coarse_row *wide = (const void *)row;
			columns[PIECES][i] = each_of(wide->peak, wire ? wire : 1);
			columns[PEAKS][i] = columns[PIECES][i] * wire - wide->peak;
			columns[BUSY][i] = wide->busy;
		}
	}
	Py_ssize_t most[2] = {4 * (1 + 4 * flows), 1 + 8 * count + 6 * (1 + 4 * count)};
	for (int part = 0; part < 2; part++) {
		uint8_t *begin = PyMem_Malloc((size_t)most[part]), *at = begin;
		if (!begin) {
			PyErr_NoMemory();
			goto out;
		}
		int wanted = part ? coarse ? COLUMNS_COARSE : COLUMNS : RUNS;
		for (int i = 0; i < wanted; i++)
			at = part ? put_column(at, columns[i], i || near ? NULL : columns[HIGHER_STARTS], count)
				  : put_column(at, runs[i], NULL, flows);
		packed[part] = PyBytes_FromStringAndSize((const char *)begin, at - begin);
		PyMem_Free(begin);
		if (!packed[part])
			goto out;
	}
	result = Py_BuildValue("nKKOO", flows, base, unit, packed[0], packed[1]);
out:
	Py_XDECREF(packed[0]);
	Py_XDECREF(packed[1]);
	PyMem_Free(scratch);
	release(&arrays);
	return result;
}

/* --- what the kernel has counted: records of closed buckets, and slots whose flow went quiet */

struct record { /* KERNEL_BUCKET, of which a BUCKET becomes in place */
	uint64_t start;
	uint32_t wire, payload;
	union {
		struct {
			uint32_t slot;
			uint16_t generation, packets;
		};
		struct {
			uint32_t flow, all_packets;
		};
	};
};

struct kernel_slot { /* SLOT */
	uint32_t key[9], link_protocol;
	uint64_t start;
	uint32_t wire, payload;
	uint16_t packets, generation;
	uint32_t losses;
};

struct taken { /* what was delivered out of a slot */
	uint64_t start;
	uint32_t wire, payload;
	uint16_t packets, generation;
	uint32_t losses, link;
};

enum { LIVE = 1, TAKEN };	/* states of slots */
enum { MEMBER = 1, FORGOTTEN }; /* kinds of flows that have no id of their own */

/* What is known of every slot, as far as the caller has it. */
struct slots {
	Py_ssize_t count;
	uint32_t *flows;
	uint16_t *generations;
	uint8_t *states;
	struct taken *taken;
};

static int slot_arrays(struct arrays *arrays, PyObject *tuple, struct slots *slots)
{
	if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != 4) {
		PyErr_SetString(PyExc_ValueError, "no tuple of 4 arrays");
		return -1;
	}
	slots->count = PyObject_Size(PyTuple_GetItem(tuple, 0));
	return slots->count < 0 ||
	       !(slots->flows = array(arrays, PyTuple_GetItem(tuple, 0), slots->count, 4, PyBUF_WRITABLE)) ||
	       !(slots->generations = array(arrays, PyTuple_GetItem(tuple, 1), slots->count, 2, PyBUF_WRITABLE)) ||
	       !(slots->states = array(arrays, PyTuple_GetItem(tuple, 2), slots->count, 1, PyBUF_WRITABLE)) ||
	       !(slots->taken =
			 array(arrays, PyTuple_GetItem(tuple, 3), slots->count, sizeof(struct taken), PyBUF_WRITABLE));
}

/* A hash table with open addresses: slot and generation → flow. */
struct holders {
	uint64_t *keys; /* 0: free */
	uint32_t *flows;
	int shift;
};

static uint64_t holder_key(uint32_t slot, uint16_t generation)
{
	return ((uint64_t)slot << 16 | generation) + 1;
}

static uint64_t holder_at(const struct holders *holders, uint64_t key)
{
	uint64_t mask = UINT64_MAX >> holders->shift, at = key * 0x9E3779B97F4A7C15ULL >> holders->shift;
	while (holders->keys[at] && holders->keys[at] != key)
		at = (at + 1) & mask;
	return at;
}

static int make_holders(struct holders *holders, const uint32_t *slots, const uint16_t *generations,
			const uint32_t *flows, Py_ssize_t count)
{
	size_t size = 2;
	for (holders->shift = 63; size < 2 * (size_t)count; size *= 2)
		holders->shift--;
	holders->keys = PyMem_Calloc(size, sizeof *holders->keys);
	holders->flows = PyMem_Calloc(size, sizeof *holders->flows);
	if (!holders->keys || !holders->flows) {
		PyErr_NoMemory();
		return -1;
	}
	for (Py_ssize_t i = 0; i < count; i++) {
		uint64_t key = holder_key(slots[i], generations[i]), at = holder_at(holders, key);
		holders->keys[at] = key;
		holders->flows[at] = flows[i];
	}
	return 0;
}

struct drained {
	Py_ssize_t left, live, unknown;
	uint32_t slot; /* the first that is unknown */
	uint16_t generation;
};

/* Takes off what was delivered out of the slot; 0: nothing is left. Slots are `live` again after their record. */
static int take_off(struct record *row, uint32_t slot, uint16_t generation, struct slots *slots, int64_t *recovered,
		    int64_t *live, struct drained *drained)
{
	uint8_t *state = slots->states + slot;
	const struct taken *taken = slots->taken + slot;
	int left = 1;
	if (*state == LIVE)
		return left;
	if (*state == TAKEN) {
		int16_t turn = (int16_t)(uint16_t)(generation - taken->generation);
		if (turn < 0 || (turn == 0 && row->start < taken->start))
			return left; /* of a bucket before the one that was taken */
		if (turn == 0 && row->start == taken->start) {
			row->wire -= taken->wire;
			row->payload -= taken->payload;
			row->all_packets -= taken->packets;
			left = row->wire || row->payload || row->all_packets;
		} else { /* a later one: there will be none of what was taken */
			int64_t *of_link = recovered + 3 * (size_t)taken->link;
			of_link[0] += taken->packets;
			of_link[1] += taken->wire;
			of_link[2] += taken->payload;
		}
	}
	*state = LIVE;
	live[drained->live++] = slot;
	return left;
}

/* name_records(words, slots, kernel_slots, changes, recovered, live): records become rows, in place; those in which
 * nothing is left, or whose flow nobody knows, leave no gap. Returns how many rows are left, how many slots are live
 * again, of how many records nobody knows the flow, and slot and generation of the first of these. */
static PyObject *name_records(PyObject *self, PyObject *args)
{
	PyObject *of_words, *of_slots, *of_kernel, *of_changes, *of_recovered, *of_live, *result = NULL;
	(void)self;
	if (!PyArg_ParseTuple(args, "OOOOOO", &of_words, &of_slots, &of_kernel, &of_changes, &of_recovered, &of_live))
		return NULL;
	struct arrays arrays = {.count = 0};
	struct slots slots;
	struct holders holders = {NULL, NULL, 0};
	struct drained drained = {0, 0, 0, 0, 0};
	Py_ssize_t count = PyObject_Size(of_words), links = PyObject_Size(of_recovered), changes;
	if (count < 0 || links < 0 || slot_arrays(&arrays, of_slots, &slots))
		goto out;
	struct record *records = array(&arrays, of_words, 3 * count, 8, PyBUF_WRITABLE);
	const struct kernel_slot *kernel =
		records ? array(&arrays, of_kernel, slots.count, sizeof(struct kernel_slot), 0) : NULL;
	int64_t *recovered = kernel ? array(&arrays, of_recovered, 3 * links, 8, PyBUF_WRITABLE) : NULL;
	int64_t *live = recovered ? array(&arrays, of_live, count, 8, PyBUF_WRITABLE) : NULL;
	if (!live)
		goto out;
	void *change[3];
	if (!PyTuple_Check(of_changes) || PyTuple_Size(of_changes) != 3) {
		PyErr_SetString(PyExc_ValueError, "no tuple of 3 arrays");
		goto out;
	}
	if ((changes = PyObject_Size(PyTuple_GetItem(of_changes, 0))) < 0)
		goto out;
	if (tuple_arrays(&arrays, of_changes, changes, "424", change) ||
	    make_holders(&holders, change[0], change[1], change[2], changes))
		goto out;
	for (Py_ssize_t i = 0; i < count; i++) {
		struct record *row = records + i;
		uint32_t slot = row->slot, packets = row->packets;
		uint16_t generation = row->generation;
		if ((Py_ssize_t)slot >= slots.count || (Py_ssize_t)slots.taken[slot].link >= links) {
			PyErr_Format(PyExc_ValueError, "slot %lu is none", (unsigned long)slot);
			goto out;
		}
		row->flow = slots.flows[slot];
		row->all_packets = packets;
		if (slots.generations[slot] != generation)
			row->flow = holders.flows[holder_at(&holders, holder_key(slot, generation))];
		int left = take_off(row, slot, generation, &slots, recovered, live, &drained);
		if (row->flow && left) {
			records[drained.left++] = *row;
		} else if (!row->flow) {
			Py_ssize_t link = kernel[slot].link_protocol >> 8;
			if (link < links) {
				recovered[3 * link] -= row->all_packets;
				recovered[3 * link + 1] -= row->wire;
				recovered[3 * link + 2] -= row->payload;
			}
			if (!drained.unknown++) {
				drained.slot = slot;
				drained.generation = generation;
			}
		}
	}
	result = Py_BuildValue("nnnIH", drained.left, drained.live, drained.unknown, drained.slot, drained.generation);
out:
	PyMem_Free(holders.keys);
	PyMem_Free(holders.flows);
	release(&arrays);
	return result;
}

/* count_unnamed(words, kinds, generations, sizes, large, listed): adds what records hold to the sizes of slots whose flow
 * has no id of its own, and lists the slots that are to be named: returns how many. */
static PyObject *count_unnamed(PyObject *self, PyObject *args)
{
	PyObject *of_words, *of_kinds, *of_generations, *of_sizes, *of_listed, *result = NULL;
	unsigned long long large;
	(void)self;
	if (!PyArg_ParseTuple(args, "OOOOKO", &of_words, &of_kinds, &of_generations, &of_sizes, &large, &of_listed))
		return NULL;
	struct arrays arrays = {.count = 0};
	Py_ssize_t count = PyObject_Size(of_words), slots = PyObject_Size(of_kinds), found = 0;
	if (count < 0 || slots < 0)
		return NULL;
	const struct record *records = array(&arrays, of_words, 3 * count, 8, 0);
	const uint8_t *kinds = records ? array(&arrays, of_kinds, slots, 1, 0) : NULL;
	const uint16_t *generations = kinds ? array(&arrays, of_generations, slots, 2, 0) : NULL;
	uint64_t *sizes = generations ? array(&arrays, of_sizes, slots, 8, PyBUF_WRITABLE) : NULL;
	int64_t *listed = sizes ? array(&arrays, of_listed, count, 8, PyBUF_WRITABLE) : NULL;
	if (!listed)
		goto out;
	for (Py_ssize_t i = 0; i < count; i++) {
		uint32_t slot = records[i].slot;
		if ((Py_ssize_t)slot >= slots) {
			PyErr_Format(PyExc_ValueError, "slot %lu is none", (unsigned long)slot);
			goto out;
		}
		if (!kinds[slot] || generations[slot] != records[i].generation)
			continue;
		sizes[slot] += records[i].wire;
		if (kinds[slot] == FORGOTTEN || sizes[slot] >= large)
			listed[found++] = slot;
	}
	result = PyLong_FromSsize_t(found);
out:
	release(&arrays);
	return result;
}

/* A slot as it is, unless a program rewrites it meanwhile: it writes the time first. */
static int read_slot(const struct kernel_slot *slot, struct kernel_slot *copy)
{
	const uint64_t *words = (const void *)slot;
	uint64_t read[sizeof *copy / 8];
	for (size_t i = 0; i < sizeof *copy / 8; i++)
		read[i] = __atomic_load_n(words + i, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	for (size_t i = 0; i < sizeof *copy / 8; i++)
		if (read[i] != __atomic_load_n(words + i, __ATOMIC_RELAXED))
			return 0;
	memcpy(copy, read, sizeof *copy);
	return 1;
}

/* take_quiet(kernel_slots, slots, live, before, words): takes the buckets of live slots that began before then, as
 * records. Returns how many are still live, which come first in `live`, and how many records there are. */
static PyObject *take_quiet(PyObject *self, PyObject *args)
{
	PyObject *of_kernel, *of_slots, *of_live, *of_words, *result = NULL;
	unsigned long long before;
	(void)self;
	if (!PyArg_ParseTuple(args, "OOOKO", &of_kernel, &of_slots, &of_live, &before, &of_words))
		return NULL;
	struct arrays arrays = {.count = 0};
	struct slots slots;
	Py_ssize_t count = PyObject_Size(of_live), left = 0, found = 0;
	if (count < 0 || slot_arrays(&arrays, of_slots, &slots))
		goto out;
	const struct kernel_slot *kernel = array(&arrays, of_kernel, slots.count, sizeof *kernel, 0);
	int64_t *live = kernel ? array(&arrays, of_live, count, 8, PyBUF_WRITABLE) : NULL;
	struct record *records = live ? array(&arrays, of_words, 3 * count, 8, PyBUF_WRITABLE) : NULL;
	if (!records)
		goto out;
	for (Py_ssize_t i = 0; i < count; i++) {
		int64_t slot = live[i];
		struct kernel_slot now;
		if (slot < 0 || slot >= slots.count) {
			PyErr_Format(PyExc_ValueError, "slot %lld is none", (long long)slot);
			goto out;
		}
		if (__atomic_load_n(&kernel[slot].start, __ATOMIC_RELAXED) >= before ||
		    !read_slot(kernel + slot, &now) || now.start >= before ||
		    now.generation != slots.generations[slot]) {
			live[left++] = slot;
			continue;
		}
		slots.states[slot] = TAKEN;
		slots.taken[slot] = (struct taken){now.start,	   now.wire,   now.payload,	      now.packets,
						   now.generation, now.losses, now.link_protocol >> 8};
		records[found++] = (struct record){.start = now.start,
						   .wire = now.wire,
						   .payload = now.payload,
						   .slot = (uint32_t)slot,
						   .generation = now.generation,
						   .packets = now.packets};
	}
	result = Py_BuildValue("nn", left, found);
out:
	release(&arrays);
	return result;
}

/* numbers_of(numbers, names, size, out): the number of each name of so many bytes in a dictionary, or 0. */
static PyObject *numbers_of(PyObject *self, PyObject *args)
{
	PyObject *numbers, *of_names, *of_out, *result = NULL;
	Py_ssize_t size;
	(void)self;
	if (!PyArg_ParseTuple(args, "O!OnO", &PyDict_Type, &numbers, &of_names, &size, &of_out))
		return NULL;
	struct arrays arrays = {.count = 0};
	Py_ssize_t count = PyObject_Size(of_names);
	if (count < 0)
		return NULL;
	const char *names = array(&arrays, of_names, count, size, 0);
	uint32_t *out = names ? array(&arrays, of_out, count, 4, PyBUF_WRITABLE) : NULL;
	if (!out)
		goto out;
	for (Py_ssize_t i = 0; i < count; i++) {
		PyObject *name = PyBytes_FromStringAndSize(names + i * size, size);
		PyObject *number = name ? PyDict_GetItemWithError(numbers, name) : NULL;
		Py_XDECREF(name);
		out[i] = number ? (uint32_t)PyLong_AsUnsignedLong(number) : 0;
		if (PyErr_Occurred())
			goto out;
	}
	result = Py_None;
	Py_INCREF(result);
out:
	release(&arrays);
	return result;
}

/* --- calls of training libraries */

enum { BEGINS = 1, IS_OVER, IS_AWAITED };

/* A hash table with open addresses: the last work that was begun at an address. */
struct begun {
	uint64_t work;
	int64_t number; /* of the work, from 1 on; 0: free */
};

/* salt: addresses are a process's own to choose, and must not be able to meet in one place. */
static struct begun *begun_at(struct begun *table, int shift, uint64_t salt, uint64_t work)
{
	uint64_t mask = UINT64_MAX >> shift, mixed = (work ^ salt) * 0x9E3779B97F4A7C15ULL;
	mixed = (mixed ^ mixed >> 32 ^ salt >> 7) * 0xD6E8FEB86659FD93ULL;
	uint64_t at = mixed >> shift;
	while (table[at].number && table[at].work != work)
		at = (at + 1) & mask;
	return &table[at];
}

/* pair_works(works, roles, over, awaited, again): of each work that is begun the first call after which it is over, and that
 * waits for it (-1: there is none), and whether another one has its address later. */
static PyObject *pair_works(PyObject *self, PyObject *args)
{
	PyObject *of_works, *of_roles, *of_over, *of_awaited, *of_again, *result = NULL;
	(void)self;
	if (!PyArg_ParseTuple(args, "OOOOO", &of_works, &of_roles, &of_over, &of_awaited, &of_again))
		return NULL;
	struct arrays arrays = {.count = 0};
	struct begun *table = NULL;
	Py_ssize_t count = PyObject_Size(of_works), most = PyObject_Size(of_over), number = 0;
	size_t size = 2;
	int shift = 63;
	if (count < 0 || most < 0)
		return NULL;
	const uint64_t *works = array(&arrays, of_works, count, 8, 0);
	const uint8_t *roles = works ? array(&arrays, of_roles, count, 1, 0) : NULL;
	int64_t *over = roles ? array(&arrays, of_over, most, 8, PyBUF_WRITABLE) : NULL;
	int64_t *awaited = over ? array(&arrays, of_awaited, most, 8, PyBUF_WRITABLE) : NULL;
	uint8_t *again = awaited ? array(&arrays, of_again, most, 1, PyBUF_WRITABLE) : NULL;
	if (!again)
		goto out;
	for (; size < 2 * (size_t)most; size *= 2)
		shift--;
	if (!(table = PyMem_Calloc(size, sizeof *table))) {
		PyErr_NoMemory();
		goto out;
	}
	uint64_t salt = (uint64_t)(uintptr_t)table ^ (uint64_t)(uintptr_t)&arrays << 20;
	for (Py_ssize_t i = 0; i < count; i++) {
		if (roles[i] < BEGINS || roles[i] > IS_AWAITED)
			continue;
		struct begun *begun = begun_at(table, shift, salt, works[i]);
		if (roles[i] == BEGINS) {
			if (number == most) {
				PyErr_SetString(PyExc_ValueError, "more works than are wanted");
				goto out;
			}
			if (begun->number)
				again[begun->number - 1] = 1;
			over[number] = awaited[number] = -1;
			again[number++] = 0;
			*begun = (struct begun){works[i], number};
		} else if (begun->number) {
			int64_t *first = (roles[i] == IS_OVER ? over : awaited) + begun->number - 1;
			if (*first < 0)
				*first = i;
		}
	}
	if (number < most) {
		PyErr_SetString(PyExc_ValueError, "fewer works than are wanted");
		goto out;
	}
	result = Py_None;
	Py_INCREF(result);
out:
	PyMem_Free(table);
	release(&arrays);
	return result;
}

static PyMethodDef methods[] = {
	{"column_widths", column_widths, METH_VARARGS, "Bytes of a number in each column; None: the data is not good."},
	{"count_unnamed", count_unnamed, METH_VARARGS, "Bytes of slots whose flow has no id of its own."},
	{"join_buckets", join_buckets, METH_VARARGS, "Bucket rows of many messages into arrays."},
	{"name_records", name_records, METH_VARARGS, "Records of closed buckets as rows, in place."},
	{"numbers_of", numbers_of, METH_VARARGS, "Names of one length in a dictionary of numbers."},
	{"pack_rows", pack_rows, METH_VARARGS, "Bucket rows as the columns of a message."},
	{"pair_works", pair_works, METH_VARARGS, "Which calls end works, and wait for them."},
	{"sum_bins", sum_bins, METH_VARARGS, "Bucket rows as coarser ones, whose bytes these are."},
	{"sum_runs", sum_runs, METH_VARARGS, "Payload of rows by host, label and key."},
	{"take_quiet", take_quiet, METH_VARARGS, "The buckets of slots whose flow went quiet, as records."},
	{NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "compiled", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_compiled(void)
{
	return PyModule_Create(&module);
}
