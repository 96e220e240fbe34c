-- Larger volumes, and more pairs of calls: `run --all`.
module long
open rules

check create_in_a_larger_volume { First.call = Create => crash_safe
} for 0 but 1 Op, exactly 4 Slot, exactly 3 Inode, exactly 3 Page, exactly 2 Gen, exactly 4 Ref, exactly 2 Half, exactly 3 Tag, exactly 4 Name, exactly 2 Off, exactly 1 Seq, exactly 1 Value, exactly 2 Mode, exactly 9 Moment
check remove_in_a_larger_volume { First.call = Remove => crash_safe
} for 0 but 1 Op, exactly 4 Slot, exactly 4 Inode, exactly 3 Page, exactly 2 Gen, exactly 5 Ref, exactly 2 Half, exactly 4 Tag, exactly 4 Name, exactly 2 Off, exactly 1 Seq, exactly 1 Value, exactly 2 Mode, exactly 3 Moment
check rename_in_a_larger_volume { First.call = Rename => crash_safe
} for 0 but 1 Op, exactly 4 Slot, exactly 4 Inode, exactly 3 Page, exactly 1 Gen, exactly 4 Ref, exactly 3 Half, exactly 5 Tag, exactly 4 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 7 Moment
check exchange_in_a_larger_volume { First.call = Exchange => crash_safe
} for 0 but 1 Op, exactly 4 Slot, exactly 4 Inode, exactly 3 Page, exactly 1 Gen, exactly 4 Ref, exactly 3 Half, exactly 6 Tag, exactly 4 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 6 Moment
check whiteout_over_a_name { First.call = Whiteout => crash_safe
} for 0 but 1 Op, exactly 3 Slot, exactly 4 Inode, exactly 2 Page, exactly 1 Gen, exactly 4 Ref, exactly 3 Half, exactly 5 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 8 Moment
check rename_to_a_new_page { (First.call = Rename and some First.room) => crash_safe
} for 0 but 1 Op, exactly 3 Slot, exactly 3 Inode, exactly 2 Page, exactly 1 Gen, exactly 3 Ref, exactly 2 Half, exactly 3 Tag, exactly 3 Name, exactly 2 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 11 Moment
check change_in_a_larger_volume { First.call = Change => crash_safe
} for 0 but 1 Op, exactly 2 Slot, exactly 3 Inode, exactly 5 Page, exactly 1 Gen, exactly 3 Ref, exactly 2 Half, exactly 2 Tag, exactly 3 Name, exactly 3 Off, exactly 3 Seq, exactly 3 Value, exactly 2 Mode, exactly 5 Moment

check change_change { (First.call = Change and Second.call = Change) => crash_safe
} for 0 but exactly 2 Op, exactly 2 Slot, exactly 3 Inode, exactly 3 Page, exactly 1 Gen, exactly 3 Ref, exactly 2 Half, exactly 2 Tag, exactly 3 Name, exactly 1 Off, exactly 2 Seq, exactly 2 Value, exactly 1 Mode, exactly 9 Moment
check rename_create { (First.call = Rename and Second.call = Create) => crash_safe
} for 0 but exactly 2 Op, exactly 2 Slot, exactly 3 Inode, exactly 1 Page, exactly 2 Gen, exactly 4 Ref, exactly 2 Half, exactly 4 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 10 Moment
check rename_and_rename { (First.call in Rename + Exchange and Second.call in Rename + Exchange and Second.begins = First.begins) => crash_safe
} for 0 but exactly 2 Op, exactly 4 Slot, exactly 4 Inode, exactly 2 Page, exactly 1 Gen, exactly 4 Ref, exactly 3 Half, exactly 5 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 7 Moment
check rename_and_create { (First.call in Rename + Exchange and Second.call in Create + Link and Second.begins = First.begins) => crash_safe
} for 0 but exactly 2 Op, exactly 4 Slot, exactly 4 Inode, exactly 2 Page, exactly 1 Gen, exactly 4 Ref, exactly 3 Half, exactly 5 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 7 Moment
