-- Calls that change names, one at a time.
module names
open rules

-- Each call comes to its end, by way of every transition; and the power may be cut while a fence is due.
run create_is_possible {
    First.call = Create and First in done
    some x: Inode, m: Moment | init[First, x, m]
    some x: Slot, m: Moment | name_short[First, x, m]
    some x: Slot, m: Moment | commit_birth_beside[First, x, m]
} for 0 but 1 Op, exactly 1 Slot, exactly 2 Inode, exactly 1 Page, exactly 1 Gen, exactly 2 Ref, exactly 1 Half, exactly 1 Tag, exactly 2 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 5 Moment
run long_name_is_possible {
    First.call = Link and First in done
    some x: Slot, m: Moment | continue_name[First, x, m]
    some x: Slot, m: Moment | name_long[First, x, m]
    some x: Slot, m: Moment | commit_link[First, x, m]
} for 0 but 1 Op, exactly 3 Slot, exactly 2 Inode, exactly 1 Page, exactly 1 Gen, exactly 2 Ref, exactly 2 Half, exactly 2 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 6 Moment
run new_page_is_possible {
    First.call = Create and First in done
    some x: Page, m: Moment | zero[First, x, m]
    some x: Page, m: Moment | adopt_zeroed[First, x, m]
    some x: Page, m: Moment | open_zeroed[First, x, m]
} for 0 but 1 Op, exactly 1 Slot, exactly 2 Inode, exactly 1 Page, exactly 1 Gen, exactly 2 Ref, exactly 1 Half, exactly 1 Tag, exactly 2 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 9 Moment
run long_name_in_new_page_is_possible {
    First.call = Create and First in done
    some x: Page, m: Moment | fill[First, x, m]
    some x: Page, m: Moment | adopt_filled[First, x, m]
    some x: Page, m: Moment | open_filled[First, x, m]
} for 0 but 1 Op, exactly 2 Slot, exactly 2 Inode, exactly 1 Page, exactly 1 Gen, exactly 2 Ref, exactly 1 Half, exactly 1 Tag, exactly 2 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 9 Moment
run symlink_is_possible {
    First.call = Symlink and First in done
    some x: Inode, m: Moment | init_bodied[First, x, m]
    some x: Page, m: Moment | adopt_page[First, x, m]
    some x: Inode, m: Moment | complete[First, x, m]
    some x: Slot, m: Moment | commit_birth[First, x, m]
} for 0 but 1 Op, exactly 1 Slot, exactly 2 Inode, exactly 2 Page, exactly 1 Gen, exactly 2 Ref, exactly 1 Half, exactly 1 Tag, exactly 2 Name, exactly 1 Off, exactly 1 Seq, exactly 2 Value, exactly 1 Mode, exactly 6 Moment
run short_symlink_is_possible {
    First.call = Symlink and First in done
    some x: Inode, m: Moment | complete_inline[First, x, m]
} for 0 but 1 Op, exactly 1 Slot, exactly 2 Inode, exactly 1 Page, exactly 1 Gen, exactly 2 Ref, exactly 1 Half, exactly 1 Tag, exactly 2 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 6 Moment
run rmdir_is_possible {
    First.call = Remove and First in done
    some x: Slot, m: Moment | remove[First, x, m]
    some x: Page, m: Moment | kill[First, x, m]
} for 0 but 1 Op, exactly 1 Slot, exactly 2 Inode, exactly 2 Page, exactly 1 Gen, exactly 2 Ref, exactly 1 Half, exactly 1 Tag, exactly 2 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 3 Moment
run rename_is_possible {
    First.call = Rename and First in done
    some x: Slot, m: Moment | aim_new[First, x, m]
    some x: Slot, m: Moment | commit_aimed[First, x, m]
    some x: Slot, m: Moment | clear[First, x, m]
} for 0 but 1 Op, exactly 2 Slot, exactly 2 Inode, exactly 1 Page, exactly 1 Gen, exactly 2 Ref, exactly 2 Half, exactly 2 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 7 Moment
run rename_over_is_possible {
    First.call = Rename and First in done
    some x: Slot, m: Moment | aim_over[First, x, m]
} for 0 but 1 Op, exactly 2 Slot, exactly 3 Inode, exactly 1 Page, exactly 1 Gen, exactly 3 Ref, exactly 2 Half, exactly 3 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 6 Moment
run exchange_is_possible {
    First.call = Exchange and First in done
    some x: Slot, m: Moment | aim_exchange[First, x, m]
    some x: Slot, m: Moment | swap[First, x, m]
} for 0 but 1 Op, exactly 2 Slot, exactly 3 Inode, exactly 1 Page, exactly 1 Gen, exactly 3 Ref, exactly 2 Half, exactly 4 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 6 Moment
run whiteout_is_possible {
    First.call = Whiteout and First in done
    some x: Slot, m: Moment | aim_swap_new[First, x, m]
} for 0 but 1 Op, exactly 2 Slot, exactly 3 Inode, exactly 1 Page, exactly 1 Gen, exactly 3 Ref, exactly 2 Half, exactly 3 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 8 Moment
run whiteout_over_is_possible {
    First.call = Whiteout and First in done
    some x: Slot, m: Moment | aim_swap_over[First, x, m]
} for 0 but 1 Op, exactly 2 Slot, exactly 4 Inode, exactly 1 Page, exactly 1 Gen, exactly 4 Ref, exactly 2 Half, exactly 4 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 8 Moment

run create_can_be_cut { First.call = Create and midway[First] } for 0 but 1 Op, exactly 1 Slot, exactly 2 Inode, exactly 1 Page, exactly 1 Gen, exactly 2 Ref, exactly 1 Half, exactly 1 Tag, exactly 2 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 3 Moment
run symlink_can_be_cut { First.call = Symlink and midway[First] } for 0 but 1 Op, exactly 1 Slot, exactly 2 Inode, exactly 1 Page, exactly 1 Gen, exactly 2 Ref, exactly 1 Half, exactly 1 Tag, exactly 2 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 3 Moment
run link_can_be_cut { First.call = Link and midway[First] } for 0 but 1 Op, exactly 2 Slot, exactly 2 Inode, exactly 1 Page, exactly 1 Gen, exactly 2 Ref, exactly 2 Half, exactly 2 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 3 Moment
run remove_can_be_cut { First.call = Remove and midway[First] and Lost.tree != last_moment.tree } for 0 but 1 Op, exactly 1 Slot, exactly 2 Inode, exactly 1 Page, exactly 1 Gen, exactly 2 Ref, exactly 1 Half, exactly 1 Tag, exactly 2 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 2 Moment
-- Between the two fences, both slots name the inode: recovery has something to do, and is cut before it did it.
run rename_can_be_cut { First.call = Rename and some effective[Lost] and some effective[Cut] } for 0 but 1 Op, exactly 2 Slot, exactly 2 Inode, exactly 1 Page, exactly 1 Gen, exactly 2 Ref, exactly 2 Half, exactly 2 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 5 Moment
run exchange_can_be_cut { First.call = Exchange and some effective[Lost] and some s: Slot | Cut.commit[s] != Lost.commit[s] and Cut.tag[s] = Lost.tag[s] } for 0 but 1 Op, exactly 2 Slot, exactly 3 Inode, exactly 1 Page, exactly 1 Gen, exactly 3 Ref, exactly 2 Half, exactly 4 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 5 Moment
run whiteout_can_be_cut { First.call = Whiteout and some effective[Lost] and some effective[Cut] } for 0 but 1 Op, exactly 2 Slot, exactly 3 Inode, exactly 1 Page, exactly 1 Gen, exactly 3 Ref, exactly 2 Half, exactly 3 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 6 Moment

check create { First.call = Create => crash_safe } for 0 but 1 Op, exactly 2 Slot, exactly 2 Inode, exactly 2 Page, exactly 2 Gen, exactly 3 Ref, exactly 2 Half, exactly 2 Tag, exactly 3 Name, exactly 2 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 9 Moment
check symlink { First.call = Symlink => crash_safe } for 0 but 1 Op, exactly 2 Slot, exactly 2 Inode, exactly 2 Page, exactly 2 Gen, exactly 3 Ref, exactly 2 Half, exactly 2 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 2 Value, exactly 1 Mode, exactly 6 Moment
check link { First.call = Link => crash_safe } for 0 but 1 Op, exactly 3 Slot, exactly 2 Inode, exactly 2 Page, exactly 1 Gen, exactly 2 Ref, exactly 2 Half, exactly 3 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 6 Moment
check remove { First.call = Remove => crash_safe } for 0 but 1 Op, exactly 3 Slot, exactly 3 Inode, exactly 2 Page, exactly 1 Gen, exactly 3 Ref, exactly 2 Half, exactly 3 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 3 Moment
check rename { First.call = Rename => crash_safe } for 0 but 1 Op, exactly 3 Slot, exactly 3 Inode, exactly 2 Page, exactly 1 Gen, exactly 3 Ref, exactly 2 Half, exactly 4 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 7 Moment
check exchange { First.call = Exchange => crash_safe } for 0 but 1 Op, exactly 3 Slot, exactly 3 Inode, exactly 2 Page, exactly 1 Gen, exactly 3 Ref, exactly 2 Half, exactly 4 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 6 Moment
check whiteout { First.call = Whiteout => crash_safe } for 0 but 1 Op, exactly 3 Slot, exactly 3 Inode, exactly 1 Page, exactly 1 Gen, exactly 3 Ref, exactly 2 Half, exactly 4 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 8 Moment
