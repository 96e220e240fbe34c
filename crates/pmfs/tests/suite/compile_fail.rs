//! Programs that break the order of stores do not compile, and the messages say why.
//!
//! Each program in `compile_fail` is a few lines that a developer could write, most of them a plan that looks right and that a
//! crash breaks. Its first lines describe the error; the compiler's message is next to it. `compile_pass` has the same steps in
//! the right order: a program here fails for its order, and not because a name has changed.
//!
//! | rule | programs |
//! |---|---|
//! | the commit word is the last store to its line | `commit_word_..`, `word_after_..`, `rename_pointer_..`, `write_back_before_..` |
//! | nothing is named before it is whole (SquirrelFS §3.1, rule 1) | `name_..`, `symlink_..`, `long_name_..`, `directory_page_..`, `whiteout_..` |
//! | nothing is reused before it is free (rule 2) | `page_freed_..`, `slot_freed_..`, `free_space_..`, `slots_of_..` |
//! | the old name goes after the new one has come (rule 3) | `rename_..`, `exchange_..` |
//! | content and pages before the size | `size_before_..`, `marks_..`, `trim_..`, `written_pages_..`, `content_..`, `inline_..` |
//! | evidence is about the object itself | `.._of_another_..`, `page_freed_by_..`, `rename_that_clears_another_slot` |
//! | write-back and fence: neither missing nor twice (§4.2) | `fence_..`, `return_..`, `write_back_twice`, `in_flight_..` |
//! | one state at a time, and none made up | `object_..`, `inode_born_twice`, `tag_..`, `brand_..`, `.._made_up`, `store_past_..` |

#![allow(clippy::unwrap_used)]

#[test]
fn programs_that_break_the_order_do_not_compile() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/compile_pass/*.rs");
    cases.compile_fail("tests/compile_fail/*.rs");
    // It compiles them and panics if one does not fail as it should.
    drop(cases);
    for entry in std::fs::read_dir("tests/compile_fail").unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.file_stem().unwrap().display();
            steadfast_testkit::caught(&format!("pm_order.{name}"));
        }
    }
}
