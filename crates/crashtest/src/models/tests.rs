#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use super::*;

fn wrong(text: &str) -> String {
    parse(text, "mine.toml", None).map_or_else(|e| e.to_string(), |m| format!("understood: {m:?}"))
}

#[test]
fn every_shipped_model_is_understood_and_named_as_listed() {
    for name in Model::names() {
        let model = Model::shipped(name).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(model.name, name);
        // No kernel has these: there is nothing to compare them with.
        let imagined = [
            "posix",
            "zfs",
            "ordered",
            "metadata-prefix",
            "sync",
            "killed",
        ];
        if imagined.contains(&name) {
            assert_eq!(model.calibration(), "not calibrated");
        }
        if ["ext4", "xfs", "btrfs"].contains(&name) {
            let said = model.calibration();
            assert!(said.contains("none outside the model"), "{name}: {said}");
        }
        assert!(!model.about.is_empty(), "{name}");
        assert!(
            !model.sync.is_empty(),
            "{name}: sync(2) makes something durable"
        );
        assert!(!model.fsync.is_empty(), "{name}");
    }
}

#[test]
fn an_error_has_line_and_column() {
    let text =
        "data = { unit = 4096 }\nfsync = [\n  \"data, size of file\",\n  \"some of it\",\n]\n";
    let said = wrong(text);
    assert!(
        said.starts_with("mine.toml:4:4: unknown word 'some of it'; known are 'data of file'"),
        "{said}"
    );
    let said = wrong("data = { unit = 4096 }\norder = [\"data before sizes of all: same fs\"]\n");
    assert!(
        said.starts_with("mine.toml:2:23: unknown word 'sizes of all'"),
        "{said}"
    );
    let said = wrong("data = { unit = 4096 }\norder = [\"data before size: same planet\"]\n");
    assert!(
        said.starts_with("mine.toml:2:29: unknown word 'same planet'"),
        "{said}"
    );
    let said = wrong("data = { unit = 4096 }\nordre = []\n");
    assert!(
        said.starts_with("mine.toml:2:1: unknown field `ordre`"),
        "{said}"
    );
    let said = wrong("data = { unit = 4096 }\nhole = \"cheese\"\n");
    assert!(
        said.starts_with("mine.toml:2:9: unknown word 'cheese'; known are 'zeros', 'garbage'"),
        "{said}"
    );
}

#[test]
fn contradictions_are_refused() {
    let said = wrong("data = { unit = 4096, tear = 1000 }\n");
    assert!(said.starts_with("mine.toml:1:30: contradiction"), "{said}");
    let said = wrong(
        "data = { unit = 4096 }\nappend = \"data-before-size\"\norder = [\"size before data: same file\"]\n",
    );
    assert!(said.starts_with("mine.toml:3:10: contradiction"), "{said}");
    let said = wrong("data = { unit = 4096 }\nappend = \"together\"\nhole = \"garbage\"\n");
    assert!(said.starts_with("mine.toml:3:8: contradiction"), "{said}");
    let said = wrong("data = { unit = 4096 }\norder = [\"data before data: same directory\"]\n");
    assert!(said.starts_with("mine.toml:2:10: contradiction"), "{said}");
    let said = wrong("data = { unit = 4096 }\nsync = [\"data of file\"]\n");
    assert!(said.starts_with("mine.toml:2:9: contradiction"), "{said}");
    assert!(wrong("data = { unit = 4095 }\n").contains("power of two"));
    assert!(wrong("name = \"x\"\n").contains("is missing"));
}

#[test]
fn a_model_that_extends_itself_is_a_cycle() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a.toml"), dir.path().join("b.toml"));
    std::fs::write(&a, "\nextends = \"b.toml\"\n").unwrap();
    std::fs::write(&b, "extends = \"./a.toml\"\n").unwrap();
    let said = Model::load(a.to_str().unwrap()).unwrap_err().to_string();
    assert!(said.contains(":1:11: cycle: "), "{said}");
    std::fs::write(&b, "extends = \"ext4\"\nappend = \"any\"\n").unwrap();
    let model = Model::load(a.to_str().unwrap()).unwrap();
    assert_eq!((model.append, model.name.as_str()), (Append::Any, "a"));
    assert_eq!(model.fsync, Model::shipped("ext4").unwrap().fsync);
}

#[test]
fn a_model_that_is_not_there_is_named_with_those_that_are() {
    let said = Model::load("ext5").unwrap_err().to_string();
    assert!(
        said.contains("'ext5'") && said.contains("ext4") && said.contains("killed"),
        "{said}"
    );
    assert!(
        Model::load("./none.toml")
            .unwrap_err()
            .to_string()
            .contains("none.toml")
    );
}
