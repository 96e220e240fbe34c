/* YCSB's core workloads on RocksDB, for `bench/run pm`.
 *
 *   ycsb DIR RECORDS OPERATIONS THREADS
 *
 * Prints lines `NAME OPERATIONS_PER_SECOND` for load-a, a, b, c, f, d, and, on a new database, load-e, e: YCSB's own order.
 * A record has 10 fields of 100 bytes. As YCSB's RocksDB client does, an update reads the record, changes one field and puts
 * it back, with RocksDB's default options: a write-ahead log that is not synced.
 *
 *   a  50 % reads, 50 % updates; zipfian            d  95 % reads, of late records mostly; 5 % inserts
 *   b  95 % reads,  5 % updates; zipfian            e  95 % scans of 1 to 100 records, zipfian; 5 % inserts
 *   c  reads; zipfian                               f  50 % reads, 50 % read, change, write; zipfian
 */
#include <math.h>
#include <pthread.h>
#include <rocksdb/c.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FIELDS = 10, FIELD_BYTES = 100, RECORD_BYTES = FIELDS * FIELD_BYTES, SCAN_MAX = 100, KEY_MAX = 32 };
static const double THETA = 0.99;

static rocksdb_t *db;
static rocksdb_readoptions_t *reading;
static rocksdb_writeoptions_t *writing;
static uint64_t records, operations, threads;
/* Numbers below it are those of records that exist, or that a thread is about to put. */
static _Atomic uint64_t inserted;
static double zeta_all, zeta_two;

static void check(char *error, const char *what) {
  if (error == NULL) return;
  fprintf(stderr, "ycsb: %s: %s\n", what, error);
  exit(1);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static uint64_t next(uint64_t *state) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return *state >> 11;
}

static double unit(uint64_t *state) { return (double)next(state) / (double)(1ull << 53); }

static uint64_t hashed(uint64_t number) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (int i = 0; i < 8; i++, number >>= 8) hash = (hash ^ (number & 0xff)) * 0x100000001b3u;
  return hash;
}

/* Gray's generator: 0 is the most frequent of `records` numbers. */
static uint64_t zipfian(uint64_t *state) {
  double u = unit(state), uz = u * zeta_all;
  if (uz < 1) return 0;
  if (uz < zeta_two) return 1;
  double eta = (1 - pow(2.0 / (double)records, 1 - THETA)) / (1 - zeta_two / zeta_all);
  uint64_t number = (uint64_t)((double)records * pow(eta * u - eta + 1, 1 / (1 - THETA)));
  return number < records ? number : records - 1;
}

static size_t key_of(uint64_t number, char *key) {
  return (size_t)snprintf(key, KEY_MAX, "user%020llu", (unsigned long long)hashed(number));
}

static void put(uint64_t number, const char *record) {
  char key[KEY_MAX], *error = NULL;
  size_t length = key_of(number, key);
  rocksdb_put(db, writing, key, length, record, RECORD_BYTES, &error);
  check(error, "put");
}

/* Copies the record if `record` is not NULL. False if it is not there. */
static bool find(uint64_t number, char *record) {
  char key[KEY_MAX], *error = NULL;
  size_t length = key_of(number, key), found;
  rocksdb_pinnableslice_t *slice = rocksdb_get_pinned(db, reading, key, length, &error);
  check(error, "get");
  const char *value = slice == NULL ? NULL : rocksdb_pinnableslice_value(slice, &found);
  bool there = value != NULL && found == RECORD_BYTES;
  if (there && record != NULL) memcpy(record, value, RECORD_BYTES);
  if (slice != NULL) rocksdb_pinnableslice_destroy(slice);
  return there;
}

static void get(uint64_t number, char *record) {
  if (find(number, record)) return;
  fprintf(stderr, "ycsb: record %llu is not there\n", (unsigned long long)number);
  exit(1);
}

static void update(uint64_t number, uint64_t *state) {
  char record[RECORD_BYTES];
  get(number, record);
  memset(record + next(state) % FIELDS * FIELD_BYTES, 'a' + (int)(next(state) % 26), FIELD_BYTES);
  put(number, record);
}

static void insert(uint64_t *state) {
  char record[RECORD_BYTES];
  for (int i = 0; i < RECORD_BYTES; i += 8) {
    uint64_t word = next(state);
    memcpy(record + i, &word, 8);
  }
  put(atomic_fetch_add(&inserted, 1), record);
}

static void scan(uint64_t number, uint64_t count) {
  char key[KEY_MAX], *error = NULL;
  size_t length = key_of(number, key), bytes;
  rocksdb_iterator_t *at = rocksdb_create_iterator(db, reading);
  volatile char sum = 0;
  for (rocksdb_iter_seek(at, key, length); count > 0 && rocksdb_iter_valid(at); rocksdb_iter_next(at), count--)
    sum = (char)(sum + rocksdb_iter_value(at, &bytes)[0]);
  rocksdb_iter_get_error(at, &error);
  check(error, "scan");
  rocksdb_iter_destroy(at);
}

struct part {
  pthread_t thread;
  uint64_t state, count;
  char workload;
};

static void operation(char workload, uint64_t *state) {
  uint64_t percent = next(state) % 100;
  switch (workload) {
    case 'l': insert(state); return;
    case 'd': {
      if (percent >= 95) {
        insert(state);
        return;
      }
      /* Another thread may not have put the newest yet: that is a read of nothing. */
      uint64_t count = atomic_load(&inserted), number = count - 1 - zipfian(state) % count;
      if (!find(number, NULL) && number < records) get(number, NULL);
      return;
    }
    default: break;
  }
  if (workload == 'e' && percent >= 95) {
    insert(state);
    return;
  }
  uint64_t number = hashed(zipfian(state)) % records;
  switch (workload) {
    case 'a': percent < 50 ? get(number, NULL) : update(number, state); break;
    case 'b': percent < 95 ? get(number, NULL) : update(number, state); break;
    case 'c': get(number, NULL); break;
    case 'e': scan(number, 1 + next(state) % SCAN_MAX); break;
    case 'f':
      get(number, NULL);
      if (percent >= 50) update(number, state);
      break;
    default: break;
  }
}

static void *work(void *argument) {
  struct part *part = argument;
  for (uint64_t i = 0; i < part->count; i++) operation(part->workload, &part->state);
  return NULL;
}

static void run(const char *name, char workload, uint64_t count) {
  struct part *parts = calloc(threads, sizeof *parts);
  if (parts == NULL) abort();
  double start = now();
  for (uint64_t i = 0; i < threads; i++) {
    parts[i] = (struct part){.state = 0x9e3779b97f4a7c15u * (i + 1), .count = count / threads, .workload = workload};
    if (pthread_create(&parts[i].thread, NULL, work, &parts[i]) != 0) abort();
  }
  for (uint64_t i = 0; i < threads; i++) pthread_join(parts[i].thread, NULL);
  printf("%s %.6f\n", name, (double)(count / threads * threads) / (now() - start));
  fflush(stdout);
  free(parts);
}

static void open_new(rocksdb_options_t *options, const char *path) {
  char *error = NULL;
  db = rocksdb_open(options, path, &error);
  check(error, path);
  atomic_store(&inserted, 0);
}

static void remove_db(rocksdb_options_t *options, const char *path) {
  char *error = NULL;
  rocksdb_close(db);
  rocksdb_destroy_db(options, path, &error);
  check(error, "destroy");
}

int main(int argc, char **argv) {
  if (argc == 5) {
    records = strtoull(argv[2], NULL, 10);
    operations = strtoull(argv[3], NULL, 10);
    threads = strtoull(argv[4], NULL, 10);
  }
  if (threads == 0 || records < 1000 || records < 100 * threads || operations < threads) {
    fprintf(stderr, "usage: ycsb DIR RECORDS OPERATIONS THREADS (1000 records and 100 for each thread at least)\n");
    return 2;
  }
  /* Every thread inserts as many. */
  records -= records % threads;
  zeta_two = 1 + pow(0.5, THETA);
  for (uint64_t i = 1; i <= records; i++) zeta_all += 1 / pow((double)i, THETA);

  char path[4096];
  snprintf(path, sizeof path, "%s/rocksdb", argv[1]);
  rocksdb_options_t *options = rocksdb_options_create();
  rocksdb_options_set_create_if_missing(options, 1);
  rocksdb_options_set_error_if_exists(options, 1);
  reading = rocksdb_readoptions_create();
  writing = rocksdb_writeoptions_create();

  open_new(options, path);
  run("load-a", 'l', records);
  run("a", 'a', operations);
  run("b", 'b', operations);
  run("c", 'c', operations);
  run("f", 'f', operations);
  run("d", 'd', operations);
  remove_db(options, path);
  open_new(options, path);
  run("load-e", 'l', records);
  run("e", 'e', operations / 10 < threads ? threads : operations / 10);
  remove_db(options, path);
  return 0;
}
