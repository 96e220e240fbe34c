use std::io::Write;
fn main() {
    let mut file = atomic_write_file::AtomicWriteFile::open("file").unwrap();
    file.write_all(b"new content\n").unwrap();
    file.commit().unwrap();
    println!("replaced");
}
