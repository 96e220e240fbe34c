-- Rules left out, one by one: each check has a counterexample.
module mutants
open rules

-- Line order.
check commit_word_before_the_name { First.call = Link => crash_safe } for 0 but exactly 1 WithoutCommitWordLast,
    1 Op, exactly 2 Slot, exactly 2 Inode, exactly 1 Page, exactly 1 Gen, exactly 2 Ref, exactly 2 Half, exactly 2 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 3 Moment
check birth_word_first { First.call = Create => crash_safe } for 0 but exactly 1 WithoutBirthLast,
    1 Op, exactly 1 Slot, exactly 2 Inode, exactly 1 Page, exactly 1 Gen, exactly 2 Ref, exactly 1 Half, exactly 1 Tag, exactly 2 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 2 Mode, exactly 4 Moment
check commit_word_before_the_size { First.call = Change => crash_safe } for 0 but exactly 1 WithoutSizeBeforeCommit,
    1 Op, exactly 1 Slot, exactly 2 Inode, exactly 2 Page, exactly 1 Gen, exactly 2 Ref, exactly 1 Half, exactly 1 Tag, exactly 2 Name, exactly 1 Off, exactly 2 Seq, exactly 2 Value, exactly 2 Mode, exactly 4 Moment
check life_before_the_owner { First.call = Change => crash_safe } for 0 but exactly 1 WithoutLifeNeutral,
    1 Op, exactly 2 Slot, exactly 3 Inode, exactly 3 Page, exactly 1 Gen, exactly 3 Ref, exactly 2 Half, exactly 2 Tag, exactly 3 Name, exactly 2 Off, exactly 2 Seq, exactly 2 Value, exactly 1 Mode, exactly 4 Moment
check commit_word_before_the_pointer { First.call = Rename => crash_safe } for 0 but exactly 1 WithoutPointerBeforeCommit,
    1 Op, exactly 2 Slot, exactly 3 Inode, exactly 1 Page, exactly 1 Gen, exactly 3 Ref, exactly 2 Half, exactly 3 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 4 Moment
check pointers_mixed { First.call in Exchange + Rename => crash_safe } for 0 but exactly 1 WithoutPointerCleared,
    1 Op, exactly 3 Slot, exactly 3 Inode, exactly 1 Page, exactly 1 Gen, exactly 3 Ref, exactly 3 Half, exactly 5 Tag, exactly 4 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 4 Moment

-- A fence left out.
check old_name_in_the_fence_of_the_new { First.call = Rename => crash_safe } for 0 but exactly 1 WithoutNewNameClean,
    1 Op, exactly 2 Slot, exactly 2 Inode, exactly 1 Page, exactly 1 Gen, exactly 2 Ref, exactly 2 Half, exactly 2 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 6 Moment
check exchange_in_one_fence { First.call = Exchange => crash_safe } for 0 but exactly 1 WithoutNewNameClean,
    1 Op, exactly 2 Slot, exactly 3 Inode, exactly 1 Page, exactly 1 Gen, exactly 3 Ref, exactly 2 Half, exactly 4 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 5 Moment
check whiteout_in_the_fence_of_the_pointer { First.call = Whiteout => crash_safe } for 0 but exactly 1 WithoutBirthClean,
    1 Op, exactly 2 Slot, exactly 3 Inode, exactly 1 Page, exactly 1 Gen, exactly 3 Ref, exactly 2 Half, exactly 3 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 6 Moment
check target_in_the_fence_of_the_name { First.call = Symlink => crash_safe } for 0 but exactly 1 WithoutTargetClean,
    1 Op, exactly 1 Slot, exactly 2 Inode, exactly 2 Page, exactly 1 Gen, exactly 2 Ref, exactly 1 Half, exactly 1 Tag, exactly 2 Name, exactly 1 Off, exactly 1 Seq, exactly 2 Value, exactly 1 Mode, exactly 5 Moment
check zeros_in_the_fence_of_the_page { First.call = Create => crash_safe } for 0 but exactly 1 WithoutRoomZeroed,
    1 Op, exactly 2 Slot, exactly 2 Inode, exactly 1 Page, exactly 1 Gen, exactly 2 Ref, exactly 2 Half, exactly 2 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 5 Moment
check rest_in_the_fence_of_the_name { First.call = Link => crash_safe } for 0 but exactly 1 WithoutRestClean,
    1 Op, exactly 3 Slot, exactly 2 Inode, exactly 1 Page, exactly 1 Gen, exactly 2 Ref, exactly 2 Half, exactly 2 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 5 Moment
check marks_in_the_fence_of_the_commit { First.call = Change => crash_safe } for 0 but exactly 1 WithoutDescriptorsClean,
    1 Op, exactly 1 Slot, exactly 2 Inode, exactly 3 Page, exactly 1 Gen, exactly 2 Ref, exactly 1 Half, exactly 1 Tag, exactly 2 Name, exactly 1 Off, exactly 2 Seq, exactly 3 Value, exactly 1 Mode, exactly 4 Moment
check content_in_the_fence_of_the_commit { First.call = Change => crash_safe } for 0 but exactly 1 WithoutContentClean,
    1 Op, exactly 1 Slot, exactly 2 Inode, exactly 3 Page, exactly 1 Gen, exactly 2 Ref, exactly 1 Half, exactly 1 Tag, exactly 2 Name, exactly 1 Off, exactly 2 Seq, exactly 3 Value, exactly 1 Mode, exactly 5 Moment

-- Values.
check marks_without_a_sequence { First.call = Change => crash_safe } for 0 but exactly 1 WithoutMarks,
    1 Op, exactly 1 Slot, exactly 2 Inode, exactly 3 Page, exactly 1 Gen, exactly 2 Ref, exactly 1 Half, exactly 1 Tag, exactly 2 Name, exactly 1 Off, exactly 2 Seq, exactly 3 Value, exactly 1 Mode, exactly 3 Moment
check no_new_tag_for_a_new_name { First.call = Link => crash_safe } for 0 but exactly 1 WithoutFreshTag,
    1 Op, exactly 2 Slot, exactly 2 Inode, exactly 1 Page, exactly 1 Gen, exactly 2 Ref, exactly 2 Half, exactly 2 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 4 Moment
check no_new_tag_on_exchange { First.call = Exchange => crash_safe } for 0 but exactly 1 WithoutSourceTag,
    1 Op, exactly 2 Slot, exactly 3 Inode, exactly 1 Page, exactly 1 Gen, exactly 3 Ref, exactly 2 Half, exactly 4 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 6 Moment
check pages_of_a_directory_live_on { First.call = Remove => crash_safe } for 0 but exactly 1 WithoutKill,
    1 Op, exactly 1 Slot, exactly 2 Inode, exactly 2 Page, exactly 1 Gen, exactly 2 Ref, exactly 1 Half, exactly 1 Tag, exactly 2 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 3 Moment

-- What a mount compares.
check generations_not_compared { First.call = Create => crash_safe } for 0 but exactly 1 WithoutGenerations,
    1 Op, exactly 1 Slot, exactly 2 Inode, exactly 1 Page, exactly 2 Gen, exactly 3 Ref, exactly 1 Half, exactly 1 Tag, exactly 2 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 2 Mode, exactly 4 Moment
check pointers_without_inodes { First.call = Rename => crash_safe } for 0 but exactly 1 WithoutPointerInodes,
    1 Op, exactly 2 Slot, exactly 3 Inode, exactly 1 Page, exactly 1 Gen, exactly 3 Ref, exactly 2 Half, exactly 3 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 4 Moment
check pointers_without_tags { First.call = Exchange => crash_safe } for 0 but exactly 1 WithoutPointerTags,
    1 Op, exactly 2 Slot, exactly 3 Inode, exactly 1 Page, exactly 1 Gen, exactly 3 Ref, exactly 2 Half, exactly 4 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 6 Moment

-- Recovery.
check renames_left_unfinished { First.call = Rename => crash_safe } for 0 but exactly 1 WithoutRenamesFinished,
    1 Op, exactly 2 Slot, exactly 2 Inode, exactly 1 Page, exactly 1 Gen, exactly 2 Ref, exactly 2 Half, exactly 3 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 5 Moment
check dangling_names_stay { First.call = Create => crash_safe } for 0 but exactly 1 WithoutDanglingDropped,
    1 Op, exactly 1 Slot, exactly 2 Inode, exactly 1 Page, exactly 1 Gen, exactly 2 Ref, exactly 1 Half, exactly 1 Tag, exactly 2 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 4 Moment
check marks_stay { First.call = Change => crash_safe } for 0 but exactly 1 WithoutMarksReverted,
    1 Op, exactly 1 Slot, exactly 2 Inode, exactly 2 Page, exactly 1 Gen, exactly 2 Ref, exactly 1 Half, exactly 1 Tag, exactly 2 Name, exactly 1 Off, exactly 2 Seq, exactly 2 Value, exactly 1 Mode, exactly 3 Moment
check old_pointers_stay_armed { First.call in Rename + Exchange => crash_safe } for 0 but exactly 1 WithoutPointersOutdated,
    1 Op, exactly 2 Slot, exactly 3 Inode, exactly 1 Page, exactly 1 Gen, exactly 3 Ref, exactly 2 Half, exactly 4 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 3 Moment
check pages_of_unreachable_directories_stay { First.call = Remove => crash_safe } for 0 but exactly 1 WithoutStrayPagesKilled,
    1 Op, exactly 1 Slot, exactly 2 Inode, exactly 2 Page, exactly 1 Gen, exactly 2 Ref, exactly 1 Half, exactly 1 Tag, exactly 2 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 3 Moment
check tag_before_the_inode { First.call = Exchange => crash_safe } for 0 but exactly 1 WithoutInodeBeforeTag,
    1 Op, exactly 2 Slot, exactly 3 Inode, exactly 1 Page, exactly 1 Gen, exactly 3 Ref, exactly 2 Half, exactly 4 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 6 Moment

-- Free space and locks.
check inode_used_again_too_early { (First.call = Rename and Second.call = Create) => crash_safe } for 0 but exactly 1 WithoutFreedClean, exactly 1 WithoutLocks,
    exactly 2 Op, exactly 3 Slot, exactly 3 Inode, exactly 1 Page, exactly 2 Gen, exactly 4 Ref, exactly 2 Half, exactly 4 Tag, exactly 4 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 5 Moment
check page_used_again_too_early { (First.call = Change and Second.call = Change and some First.dies & content_pages[Second]) => crash_safe } for 0 but exactly 1 WithoutFreedClean,
    exactly 2 Op, exactly 2 Slot, exactly 3 Inode, exactly 2 Page, exactly 1 Gen, exactly 3 Ref, exactly 1 Half, exactly 1 Tag, exactly 3 Name, exactly 1 Off, exactly 2 Seq, exactly 2 Value, exactly 1 Mode, exactly 5 Moment
check no_locks { (First.call = Remove and Second.call = Create) => crash_safe } for 0 but exactly 1 WithoutLocks,
    exactly 2 Op, exactly 2 Slot, exactly 3 Inode, exactly 2 Page, exactly 1 Gen, exactly 3 Ref, exactly 2 Half, exactly 2 Tag, exactly 3 Name, exactly 1 Off, exactly 1 Seq, exactly 1 Value, exactly 1 Mode, exactly 5 Moment
