fn main() {
    let mut words = std::env::args().skip(1);
    let what = words.next().unwrap();
    let db = match sled::open("db") {
        Ok(db) => db,
        Err(e) => {
            println!("does not open: {}", e.to_string().split(|c: char| c == ':' || c.is_ascii_digit()).next().unwrap());
            std::process::exit(1);
        }
    };
    if what == "write" {
        for key in words {
            db.insert(&key, key.repeat(400).as_bytes()).unwrap();
            db.flush().unwrap();
            println!("{key}");
        }
        return;
    }
    let acked = std::fs::read_to_string(words.next().unwrap()).unwrap();
    for key in acked.lines() {
        match db.get(key) {
            Ok(Some(value)) if value == key.repeat(400).as_bytes() => {}
            Ok(_) => {
                println!("a key is lost");
                std::process::exit(1);
            }
            Err(e) => {
                println!("does not read: {e}");
                std::process::exit(1);
            }
        }
    }
}
