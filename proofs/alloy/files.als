-- Calls that change a file: write, truncate, punch, zero, fallocate, chmod.
module files
open rules

run write_is_possible {
    First.call = Change and First in done and some First.writes
    some x: Page, m: Moment | adopt_page[First, x, m]
    some x: Page, m: Moment | die[First, x, m]
    some x: Inode, m: Moment | commit_inode[First, x, m]
} for 0 but 1 Op, exactly 1 Slot, exactly 2 Inode, exactly 3 Page, exactly 1 Gen, exactly 2 Ref, exactly 1 Half, exactly 1 Tag, exactly 2 Name, exactly 2 Off, exactly 2 Seq, exactly 3 Value, exactly 2 Mode, exactly 5 Moment
run write_over_unwritten_is_possible {
    First.call = Change and First in done and some First.writes
    some x: Page, m: Moment | turn[First, x, m]
} for 0 but 1 Op, exactly 1 Slot, exactly 2 Inode, exactly 2 Page, exactly 1 Gen, exactly 2 Ref, exactly 1 Half, exactly 1 Tag, exactly 2 Name, exactly 2 Off, exactly 2 Seq, exactly 3 Value, exactly 2 Mode, exactly 5 Moment
run zero_is_possible {
    First.call = Change and First in done
    some x: Page, m: Moment | clear_page[First, x, m]
    some x: Page, m: Moment | reserve_before[First, x, m]
} for 0 but 1 Op, exactly 1 Slot, exactly 2 Inode, exactly 3 Page, exactly 1 Gen, exactly 2 Ref, exactly 1 Half, exactly 1 Tag, exactly 2 Name, exactly 2 Off, exactly 2 Seq, exactly 3 Value, exactly 2 Mode, exactly 5 Moment
run truncate_and_reserve_are_possible {
    First.call = Change and First in done
    some x: Page, m: Moment | trim[First, x, m]
    some x: Page, m: Moment | reserve_beside[First, x, m]
} for 0 but 1 Op, exactly 1 Slot, exactly 2 Inode, exactly 3 Page, exactly 1 Gen, exactly 2 Ref, exactly 1 Half, exactly 1 Tag, exactly 2 Name, exactly 2 Off, exactly 2 Seq, exactly 3 Value, exactly 2 Mode, exactly 3 Moment
-- The commit word is lost, and recovery takes marks back.
run write_can_be_cut { First.call = Change and midway[First] and some p: Page | Recovered.at[p] != Lost.at[p] and First.on.ino = Lost.owned_by[p].ino } for 0 but 1 Op, exactly 1 Slot, exactly 2 Inode, exactly 3 Page, exactly 1 Gen, exactly 2 Ref, exactly 1 Half, exactly 1 Tag, exactly 2 Name, exactly 2 Off, exactly 2 Seq, exactly 3 Value, exactly 2 Mode, exactly 4 Moment

check change { First.call = Change => crash_safe } for 0 but 1 Op, exactly 1 Slot, exactly 2 Inode, exactly 3 Page, exactly 1 Gen, exactly 2 Ref, exactly 1 Half, exactly 1 Tag, exactly 2 Name, exactly 2 Off, exactly 2 Seq, exactly 2 Value, exactly 2 Mode, exactly 5 Moment
