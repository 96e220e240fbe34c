// LevelDB for `bench/run streams`: fills an empty database in random order, or checks one.
//
//   leveldb fill DIR KEYS [safe]   KEYS values of 1,000 bytes under random keys, without sync; prints the seconds. With `safe`,
//                                  files and directories get the fsync calls that ext4 needs to keep a prefix of them
//   leveldb append DIR FROM KEYS MICROSECONDS
//                                  one after the other with increasing keys, so long apart; prints each after its put has returned
//   leveldb check DIR              exits 1 unless the keys of `append` that are there are the first ones, each with its value;
//                                  prints how many
#include <fcntl.h>
#include <leveldb/db.h>
#include <leveldb/env.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>

namespace {

void fail(const char *what, const leveldb::Status &status) {
  std::fprintf(stderr, "leveldb: %s: %s\n", what, status.ToString().c_str());
  std::exit(1);
}

std::string parent(const std::string &path) {
  auto slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

leveldb::Status sync_directory(const std::string &path) {
  int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY);
  if (fd < 0) return leveldb::Status::IOError(path, std::strerror(errno));
  int failed = fsync(fd);
  close(fd);
  return failed ? leveldb::Status::IOError(path, std::strerror(errno)) : leveldb::Status::OK();
}

// A file that is durable, and its name, before anything that comes after its end.
class SafeFile : public leveldb::WritableFile {
 public:
  explicit SafeFile(leveldb::WritableFile *file) : file_(file) {}
  leveldb::Status Append(const leveldb::Slice &data) override { return file_->Append(data); }
  leveldb::Status Close() override {
    leveldb::Status status = file_->Sync();
    return status.ok() ? file_->Close() : status;
  }
  leveldb::Status Flush() override { return file_->Flush(); }
  leveldb::Status Sync() override { return file_->Sync(); }

 private:
  std::unique_ptr<leveldb::WritableFile> file_;
};

class SafeEnv : public leveldb::EnvWrapper {
 public:
  explicit SafeEnv(leveldb::Env *env) : leveldb::EnvWrapper(env) {}
  leveldb::Status NewWritableFile(const std::string &name, leveldb::WritableFile **result) override {
    leveldb::Status status = target()->NewWritableFile(name, result);
    if (!status.ok()) return status;
    *result = new SafeFile(*result);
    return sync_directory(parent(name));
  }
  leveldb::Status RenameFile(const std::string &from, const std::string &to) override {
    leveldb::Status status = target()->RenameFile(from, to);
    return status.ok() ? sync_directory(parent(to)) : status;
  }
  leveldb::Status RemoveFile(const std::string &name) override {
    // What replaces it is durable before it goes.
    leveldb::Status status = sync_directory(parent(name));
    return status.ok() ? target()->RemoveFile(name) : status;
  }
};

std::unique_ptr<leveldb::DB> opened(const std::string &dir, bool create, leveldb::Env *env) {
  leveldb::Options options;
  options.create_if_missing = create;
  options.paranoid_checks = true;
  options.compression = leveldb::kNoCompression;
  options.env = env;
  leveldb::DB *db = nullptr;
  leveldb::Status status = leveldb::DB::Open(options, dir, &db);
  if (!status.ok()) fail("open", status);
  return std::unique_ptr<leveldb::DB>(db);
}

std::string key(unsigned long number) {
  char text[24];
  std::snprintf(text, sizeof text, "%016lu", number);
  return text;
}

// Different for each key, and long enough for several blocks of a log in a hundred keys.
std::string value(unsigned long number, size_t bytes) {
  std::string text = key(number);
  while (text.size() < bytes) text += key(number * 2654435761u + text.size());
  text.resize(bytes);
  return text;
}

int fill(const std::string &dir, unsigned long keys, bool safe) {
  SafeEnv safe_env(leveldb::Env::Default());
  auto start = std::chrono::steady_clock::now();
  {
    auto db = opened(dir, true, safe ? &safe_env : leveldb::Env::Default());
    std::mt19937 random(7);
    for (unsigned long i = 0; i < keys; i++) {
      unsigned long number = random() % keys;
      leveldb::Status status = db->Put(leveldb::WriteOptions(), key(number), value(number, 1000));
      if (!status.ok()) fail("put", status);
    }
  }
  std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::printf("%.6f\n", seconds.count());
  return 0;
}

int append(const std::string &dir, unsigned long from, unsigned long keys, unsigned apart) {
  auto db = opened(dir, true, leveldb::Env::Default());
  for (unsigned long number = from; number < from + keys; number++) {
    leveldb::Status status = db->Put(leveldb::WriteOptions(), key(number), value(number, 1000));
    if (!status.ok()) fail("put", status);
    std::printf("%lu\n", number);
    std::fflush(stdout);
    if (apart) usleep(apart);
  }
  return 0;
}

int check(const std::string &dir) {
  auto db = opened(dir, false, leveldb::Env::Default());
  std::unique_ptr<leveldb::Iterator> it(db->NewIterator(leveldb::ReadOptions()));
  unsigned long number = 0;
  for (it->SeekToFirst(); it->Valid(); it->Next(), number++) {
    if (it->key().ToString() != key(number) || it->value().ToString() != value(number, 1000)) {
      std::fprintf(stderr, "leveldb: key %s where %s belongs, or another value\n", it->key().ToString().c_str(),
                   key(number).c_str());
      return 1;
    }
  }
  if (!it->status().ok()) fail("read", it->status());
  std::printf("%lu\n", number);
  return 0;
}

}  // namespace

int main(int count, char **words) {
  std::string what = count > 1 ? words[1] : "";
  if (what == "fill" && (count == 4 || count == 5)) {
    return fill(words[2], std::strtoul(words[3], nullptr, 10), count == 5 && !std::strcmp(words[4], "safe"));
  }
  if (what == "append" && count == 6) {
    return append(words[2], std::strtoul(words[3], nullptr, 10), std::strtoul(words[4], nullptr, 10),
                  std::strtoul(words[5], nullptr, 10));
  }
  if (what == "check" && count == 3) return check(words[2]);
  std::fprintf(stderr, "usage: leveldb fill DIR KEYS [safe] | append DIR FROM KEYS MICROSECONDS | check DIR\n");
  return 2;
}
