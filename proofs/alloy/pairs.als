-- Two calls: the second begins with the first, in its midst, or after it. More of them are in long.als.
module pairs
open rules

run remove_then_create_is_possible {
    First.call = Remove and Second.call = Create and Op in done
    Second.to = First.from and Second.born.ino = First.on.ino
} for 0 but exactly 2 Op, exactly 1 Slot, exactly 2 Inode, exactly 1 Page, exactly 2 Gen, exactly 3 Ref, exactly 2 Half, exactly 2 Tag, exactly 2 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 7 Moment
run rmdir_then_write_is_possible {
    First.call = Remove and Second.call = Change and Op in done
    some First.kills & content_pages[Second]
} for 0 but exactly 2 Op, exactly 2 Slot, exactly 3 Inode, exactly 2 Page, exactly 1 Gen, exactly 3 Ref, exactly 2 Half, exactly 2 Tag, exactly 3 Name, exactly 1 Off, exactly 2 Seq, exactly 2 Value, exactly 1 Mode, exactly 7 Moment
run truncate_then_write_is_possible {
    First.call = Change and Second.call = Change and Op in done
    some First.dies & content_pages[Second]
} for 0 but exactly 2 Op, exactly 2 Slot, exactly 3 Inode, exactly 2 Page, exactly 1 Gen, exactly 3 Ref, exactly 2 Half, exactly 2 Tag, exactly 3 Name, exactly 1 Off, exactly 2 Seq, exactly 2 Value, exactly 1 Mode, exactly 7 Moment
run two_at_once_are_possible {
    First.call = Rename and Second.call = Remove and Second.begins = First.begins and midway[First] and midway[Second]
} for 0 but exactly 2 Op, exactly 3 Slot, exactly 3 Inode, exactly 2 Page, exactly 1 Gen, exactly 3 Ref, exactly 2 Half, exactly 3 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 4 Moment

check remove_create { (First.call = Remove and Second.call = Create) => crash_safe
} for 0 but exactly 2 Op, exactly 2 Slot, exactly 2 Inode, exactly 1 Page, exactly 2 Gen, exactly 3 Ref, exactly 2 Half, exactly 2 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 7 Moment
check remove_write { (First.call = Remove and Second.call = Change) => crash_safe
} for 0 but exactly 2 Op, exactly 2 Slot, exactly 3 Inode, exactly 2 Page, exactly 1 Gen, exactly 3 Ref, exactly 2 Half, exactly 2 Tag, exactly 3 Name, exactly 1 Off, exactly 2 Seq, exactly 2 Value, exactly 1 Mode, exactly 7 Moment
-- A page that the first call frees, and the second one uses, in another file.
check page_used_again {
    (First.call = Change and Second.call = Change and one_fence[First] and First.on != Second.on and some First.dies & content_pages[Second]) => crash_safe
} for 0 but exactly 2 Op, exactly 2 Slot, exactly 3 Inode, exactly 2 Page, exactly 1 Gen, exactly 3 Ref, exactly 1 Half, exactly 1 Tag, exactly 3 Name, exactly 1 Off, exactly 2 Seq, exactly 2 Value, exactly 1 Mode, exactly 7 Moment
check rename_and_remove { (First.call = Rename and Second.call = Remove and Second.begins = First.begins) => crash_safe
} for 0 but exactly 2 Op, exactly 3 Slot, exactly 3 Inode, exactly 2 Page, exactly 1 Gen, exactly 3 Ref, exactly 2 Half, exactly 3 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 7 Moment
