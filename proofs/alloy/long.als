-- Larger volumes, and one more pair of calls: `run --all`.
module long
open rules

check create_in_a_larger_volume { First.call = Create => crash_safe
} for 0 but 1 Op, exactly 3 Slot, exactly 3 Inode, exactly 2 Page, exactly 2 Gen, exactly 4 Ref, exactly 2 Half, exactly 3 Tag, exactly 3 Name, exactly 2 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 9 Moment
check rename_in_a_larger_volume { First.call = Rename => crash_safe
} for 0 but 1 Op, exactly 3 Slot, exactly 4 Inode, exactly 2 Page, exactly 1 Gen, exactly 4 Ref, exactly 2 Half, exactly 4 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 7 Moment
check exchange_in_a_larger_volume { First.call = Exchange => crash_safe
} for 0 but 1 Op, exactly 3 Slot, exactly 4 Inode, exactly 2 Page, exactly 1 Gen, exactly 4 Ref, exactly 2 Half, exactly 4 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 6 Moment
check change_in_a_larger_volume { First.call = Change => crash_safe
} for 0 but 1 Op, exactly 1 Slot, exactly 2 Inode, exactly 4 Page, exactly 1 Gen, exactly 2 Ref, exactly 1 Half, exactly 1 Tag, exactly 2 Name, exactly 2 Off, exactly 3 Seq, exactly 3 Value, exactly 2 Mode, exactly 5 Moment
-- The inode that the rename replaces, and the slot that it leaves, may be used by the second call.
check rename_create { (First.call = Rename and Second.call = Create) => crash_safe
} for 0 but exactly 2 Op, exactly 2 Slot, exactly 3 Inode, exactly 1 Page, exactly 2 Gen, exactly 4 Ref, exactly 2 Half, exactly 4 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 10 Moment
