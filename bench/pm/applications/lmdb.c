/* LMDB's fill loads, for `bench/run pm`.
 *
 *   lmdb DIR KEYS SYNCED_KEYS
 *
 * Prints lines `NAME KEYS_PER_SECOND`. Each load begins with a new database in DIR and ends when everything is durable and the
 * database is closed. Keys have 16 bytes, values 100.
 *
 *   fillseqbatch    keys in order, 1000 to a transaction; written through the memory map (MDB_WRITEMAP), not synced before the end
 *   fillrandbatch   keys in random order, otherwise the same
 *   fillrand        keys in random order, one to a transaction
 *   fillsync        SYNCED_KEYS keys in random order, one to a transaction, each durable; LMDB's default: written by pwrite
 */
#include <lmdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { KEY_BYTES = 16, VALUE_BYTES = 100, BATCH = 1000 };

static void check(int code, const char *what) {
  if (code == 0) return;
  fprintf(stderr, "lmdb: %s: %s\n", what, mdb_strerror(code));
  exit(1);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* A permutation of 0 .. count - 1: multiplication by a number that has no factor in common with count. */
static uint64_t shuffled(uint64_t i, uint64_t count) {
  uint64_t factor = 2654435761u % count | 1;
  for (;; factor += 2) {
    uint64_t a = factor, b = count;
    while (b != 0) {
      uint64_t rest = a % b;
      a = b;
      b = rest;
    }
    if (a == 1) return (uint64_t)((unsigned __int128)i * factor % count);
  }
}

static void fill(const char *dir, const char *name, unsigned flags, uint64_t keys, int random, uint64_t batch) {
  MDB_env *env;
  MDB_txn *txn;
  MDB_dbi dbi = 0;
  MDB_stat stat;
  char path[4096], key[KEY_BYTES + 1], value[VALUE_BYTES];
  memset(value, 'v', sizeof value);
  snprintf(path, sizeof path, "%s/%s.mdb", dir, name);

  check(mdb_env_create(&env), "create");
  /* Room for pages that are half full, and for old ones beside the new. */
  check(mdb_env_set_mapsize(env, (keys * 512 + (64u << 20)) & ~(size_t)4095), "map size");
  double start = now();
  check(mdb_env_open(env, path, flags | MDB_NOSUBDIR, 0644), path);
  for (uint64_t i = 0; i < keys; i += batch) {
    check(mdb_txn_begin(env, NULL, 0, &txn), "begin");
    if (i == 0) check(mdb_dbi_open(txn, NULL, 0, &dbi), "open");
    for (uint64_t j = i; j < keys && j < i + batch; j++) {
      snprintf(key, sizeof key, "%016llx", (unsigned long long)(random ? shuffled(j, keys) : j));
      memcpy(value, key, KEY_BYTES);
      MDB_val k = {KEY_BYTES, key}, v = {VALUE_BYTES, value};
      check(mdb_put(txn, dbi, &k, &v, random ? 0 : MDB_APPEND), "put");
    }
    check(mdb_txn_commit(txn), "commit");
  }
  check(mdb_env_sync(env, 1), "sync");
  double seconds = now() - start;

  check(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn), "begin");
  check(mdb_stat(txn, dbi, &stat), "stat");
  if (stat.ms_entries != keys) {
    fprintf(stderr, "lmdb: %s: %zu keys are there, not %llu\n", name, stat.ms_entries, (unsigned long long)keys);
    exit(1);
  }
  mdb_txn_abort(txn);
  start = now();
  mdb_env_close(env);
  seconds += now() - start;
  printf("%s %.6f\n", name, (double)keys / seconds);
  fflush(stdout);
  unlink(path);
  strncat(path, "-lock", sizeof path - strlen(path) - 1);
  unlink(path);
}

int main(int argc, char **argv) {
  uint64_t keys = argc == 4 ? strtoull(argv[2], NULL, 10) : 0;
  uint64_t synced = argc == 4 ? strtoull(argv[3], NULL, 10) : 0;
  if (keys < 2 || synced < 2) {
    fprintf(stderr, "usage: lmdb DIR KEYS SYNCED_KEYS\n");
    return 2;
  }
  fill(argv[1], "fillseqbatch", MDB_WRITEMAP | MDB_NOSYNC, keys, 0, BATCH);
  fill(argv[1], "fillrandbatch", MDB_WRITEMAP | MDB_NOSYNC, keys, 1, BATCH);
  fill(argv[1], "fillrand", MDB_WRITEMAP | MDB_NOSYNC, keys, 1, 1);
  fill(argv[1], "fillsync", 0, synced, 1, 1);
  return 0;
}
