-- Steps: transitions of objects, write-backs, fences; the power cut and recovery.
--
-- One step lets every object make at most one transition: objects lie on lines of their own, and nothing but a fence orders two
-- lines. The comment beside a predicate names the row of crates/pmfs/src/state/transitions.rs, `goes` has its states, `needs` what
-- it looks at of other objects. crates/pmfs/tests/suite/alloy.rs compares the two.
module transitions

open calls
open util/ordering[Moment] as moments
open util/ordering[Gen] as gens
open util/ordering[Seq] as seqs
open util/ordering[Off] as offs

-- Rules that mutants leave out: the order of words in a line.
sig WithoutCommitWordLast {}
sig WithoutBirthLast {}
sig WithoutLifeNeutral {}
sig WithoutSizeBeforeCommit {}
sig WithoutPointerBeforeCommit {}
sig WithoutPointerCleared {}
-- What is clean before the next store.
sig WithoutNewNameClean {}
sig WithoutBirthClean {}
sig WithoutTargetClean {}
sig WithoutRoomZeroed {}
sig WithoutRestClean {}
sig WithoutDescriptorsClean {}
sig WithoutContentClean {}
-- Tags.
sig WithoutFreshTag {}
sig WithoutSourceTag {}

pred goes[o: Op, x: Object, m: Moment, p: Persistence, was: State, q: Persistence, is: State] {
    m.persistence[o][x] = p and m.state[o][x] = was
    m.then.persistence[o][x] = q and m.then.state[o][x] = is
}
pred needs[o: Op, x: set Object, m: Moment, p: Persistence, s: State] {
    all y: x | m.persistence[o][y] = p and m.state[o][y] = s
}
-- Evidence of sets: all descriptors of new pages, all content.
pred needs_descriptors[o: Op, m: Moment, p: Persistence] {
    all y: adopted[o] | m.persistence[o][y] = p and m.state[o][y] = Adopted
    all y: o.turns + o.clears | m.persistence[o][y] = p and m.state[o][y] = Turned
    all y: o.dies | m.persistence[o][y] = p and m.state[o][y] = Dying
}
pred needs_content[o: Op, m: Moment, p: Persistence] { m.content[o] = content_pages[o] -> p }
fun then[m: Moment]: lone Moment { m.(moments/next) }

-- Transitions of slots -------------------------------------------------------------------------------------------------

-- The rest of a long name, in the slot after this one.
pred continue_name[o: Op, x: Slot, m: Moment] { -- Dentry::continue_name
    goes[o, x, m, Clean, Free, Dirty, Continued]
    some rest_slot[o] and no o.room
    slot_as[m.then, m, x]
}

-- The name. No reader looks at these words before the commit word.
pred name_short[o: Op, x: Slot, m: Moment] { -- Dentry::name
    goes[o, x, m, Clean, Free, Dirty, Named]
    some WithoutRestClean or no rest_slot[o]
    named[o, x, m]
}
pred name_long[o: Op, x: Slot, m: Moment] { -- Dentry::name
    goes[o, x, m, Clean, Continued, Dirty, Named]
    named[o, x, m]
}
pred named[o: Op, x: Slot, m: Moment] {
    m.state[o][o.room] in Opened
    no_pointer[m.then, x] and other_as[m.then, m, x] and commit_as[m.then, m, x]
    m.then.tag[x] = ((some WithoutFreshTag and some m.tag[x]) => m.tag[x] else o.fresh)
    m.then.head[x] = o.name and no m.then.rest[x]
}

-- The commit word: the inode has this name.
pred commit_birth_beside[o: Op, x: Slot, m: Moment] { -- Dentry::commit
    goes[o, x, m, Dirty, Named, Dirty, Committed]
    needs[o, o.born.ino, m, InFlight, Init]
    o.call in Create + Symlink and committed[o, x, m, o.born]
}
pred commit_birth[o: Op, x: Slot, m: Moment] { -- Dentry::commit
    goes[o, x, m, Dirty, Named, Dirty, Committed]
    needs[o, o.born.ino, m, Clean, Init]
    o.call in Create + Symlink and committed[o, x, m, o.born]
}
pred commit_link[o: Op, x: Slot, m: Moment] { -- Dentry::commit
    goes[o, x, m, Dirty, Named, Dirty, Committed]
    needs[o, o.on.ino, m, Clean, Live]
    o.call = Link and committed[o, x, m, o.on]
}
pred committed[o: Op, x: Slot, m: Moment, r: Ref] {
    m.then.commit[x] = r
    pointer_as[m.then, m, x] and other_as[m.then, m, x] and body_as[m.then, m, x]
}
-- Mutant: the commit word before the name that it commits; see `partial_slot`.
pred commit_too_early[o: Op, x: Slot, m: Moment] {
    some WithoutCommitWordLast and o.call = Link and no rest_slot[o] and no o.room
    goes[o, x, m, Clean, Free, Dirty, Committed]
    m.then.commit[x] = o.on
    no_pointer[m.then, x] and other_as[m.then, m, x]
    m.then.tag[x] = o.fresh and m.then.head[x] = o.name and no m.then.rest[x]
}

-- The pointer of a rename, of an exchange, and of a rename that leaves a whiteout: into a slot that has its name and names
-- nothing, or over a name.
pred aim_new[o: Op, x: Slot, m: Moment] { -- Dentry::aim
    goes[o, x, m, Dirty, Named, Dirty, Aimed]
    needs[o, o.from, m, Clean, Live]
    o.call = Rename and aimed[o, x, m] and body_as[m.then, m, x]
}
pred aim_swap_new[o: Op, x: Slot, m: Moment] { -- Dentry::aim_swap
    goes[o, x, m, Dirty, Named, Dirty, Aimed]
    needs[o, o.from, m, Clean, Live]
    needs[o, o.born.ino, m, Clean, Init]
    o.call = Whiteout and aimed[o, x, m] and body_as[m.then, m, x]
}
pred aim_over[o: Op, x: Slot, m: Moment] { -- Dentry::aim
    goes[o, x, m, Clean, Live, Dirty, Aimed]
    needs[o, o.from, m, Clean, Live]
    o.call = Rename and aimed_over[o, x, m]
}
pred aim_exchange[o: Op, x: Slot, m: Moment] { -- Dentry::aim_exchange
    goes[o, x, m, Clean, Live, Dirty, Aimed]
    needs[o, o.from, m, Clean, Live]
    o.call = Exchange and aimed_over[o, x, m]
}
pred aim_swap_over[o: Op, x: Slot, m: Moment] { -- Dentry::aim_swap
    goes[o, x, m, Clean, Live, Dirty, Aimed]
    needs[o, o.from, m, Clean, Live]
    needs[o, o.born.ino, m, Clean, Init]
    o.call = Whiteout and aimed_over[o, x, m]
}
-- Mutant: the whiteout in the fence of the pointer.
pred aim_swap_too_early[o: Op, x: Slot, m: Moment] {
    some WithoutBirthClean and o.call = Whiteout
    goes[o, x, m, Dirty, Named, Dirty, Aimed]
    m.state[o][o.born.ino] = Init
    aimed[o, x, m] and body_as[m.then, m, x]
}
pred aimed[o: Op, x: Slot, m: Moment] {
    x = o.to
    m.then.place[x] = o.from and m.then.high[x] = m.tag[o.from].hi and m.then.low[x] = m.tag[o.from].lo
    o.call = Rename => (x not in m.then.exchange and no m.then.other[x])
        else (x in m.then.exchange and m.then.other[x] = (o.call = Exchange => o.gone else o.born).ino)
    m.then.commit[x] = (some WithoutPointerBeforeCommit => o.on else m.commit[x])
}
pred aimed_over[o: Op, x: Slot, m: Moment] {
    aimed[o, x, m]
    m.then.tag[x] = (some WithoutFreshTag => m.tag[x] else o.fresh) and m.then.head[x] = m.head[x] and m.then.rest[x] = m.rest[x]
}
pred commit_aimed[o: Op, x: Slot, m: Moment] { -- Dentry::commit
    goes[o, x, m, Dirty, Aimed, Dirty, Committed]
    o.call = Rename and committed[o, x, m, o.on]
}
pred commit_swap[o: Op, x: Slot, m: Moment] { -- Dentry::commit
    goes[o, x, m, Dirty, Aimed, Dirty, Committed]
    o.call != Rename and committed[o, x, m, o.on]
}

-- The second step of a rename: the old name goes.
pred clear[o: Op, x: Slot, m: Moment] { -- Dentry::clear
    goes[o, x, m, Clean, Live, Dirty, Cleared]
    needs[o, o.to, m, Clean, Committed]
    o.call = Rename and x = o.from and committed[o, x, m, none]
}
pred remove[o: Op, x: Slot, m: Moment] { -- Dentry::remove
    goes[o, x, m, Clean, Live, Dirty, Cleared]
    o.call = Remove and committed[o, x, m, none]
}
-- The second step of an exchange: the own pointer goes, the other inode, then a new tag, which outdates the pointer to this slot.
pred swap[o: Op, x: Slot, m: Moment] { -- Dentry::swap
    goes[o, x, m, Clean, Live, Dirty, Swapped]
    needs[o, o.to, m, Clean, Committed]
    swapped[o, x, m]
}
pred swapped[o: Op, x: Slot, m: Moment] {
    o.call in Exchange + Whiteout and x = o.from
    no_pointer[m.then, x] and other_as[m.then, m, x]
    m.then.commit[x] = (o.call = Exchange => o.gone else o.born)
    m.then.tag[x] = (some WithoutSourceTag => m.tag[x] else o.renew) and m.then.head[x] = m.head[x] and m.then.rest[x] = m.rest[x]
}
-- Mutants: the old name goes before the new one is durable.
pred second_too_early[o: Op, x: Slot, m: Moment] {
    some WithoutNewNameClean and x = o.from
    m.state[o][o.to] = Committed
    goes[o, x, m, Clean, Live, Dirty, Cleared] and o.call = Rename and committed[o, x, m, none]
    or goes[o, x, m, Clean, Live, Dirty, Swapped] and swapped[o, x, m]
}

-- Transitions of inodes ------------------------------------------------------------------------------------------------

-- A new life: the birth word last.
pred init[o: Op, x: Inode, m: Moment] { -- Inode::init
    goes[o, x, m, Clean, Free, Dirty, Init]
    o.call != Symlink and born_stored[o, x, m]
}
pred init_bodied[o: Op, x: Inode, m: Moment] { -- Inode::init_bodied
    goes[o, x, m, Clean, Free, Dirty, Bodied]
    o.call = Symlink and born_stored[o, x, m]
}
pred born_stored[o: Op, x: Inode, m: Moment] {
    m.then.birth[x] = o.born and m.then.sequence[x] = seqs/first and m.then.mode[x] = o.mode2
    m.then.size0[x] = o.size2 and m.then.size1[x] = m.size1[x]
}
-- Its target is there. A target in the inode's own lines needs no pages.
pred complete_inline[o: Op, x: Inode, m: Moment] { -- Inode::complete_inline
    goes[o, x, m, Clean, Bodied, Clean, Init]
    no adopted[o] and inode_as[m.then, m, x]
}
pred complete[o: Op, x: Inode, m: Moment] { -- Inode::complete
    goes[o, x, m, Clean, Bodied, Clean, Init]
    needs_descriptors[o, m, Clean]
    needs_content[o, m, Clean]
    some adopted[o] and inode_as[m.then, m, x]
}
-- Mutant: the target in the fence of the name.
pred complete_too_early[o: Op, x: Inode, m: Moment] {
    some WithoutTargetClean and inode_as[m.then, m, x]
    goes[o, x, m, InFlight, Bodied, InFlight, Init] or goes[o, x, m, Clean, Bodied, Clean, Init]
}

-- The other slot of size, then sequence and mode in one word.
pred commit_inode[o: Op, x: Inode, m: Moment] { -- Inode::commit
    goes[o, x, m, Clean, Live, Dirty, Changed]
    o.call = Change
    one_fence[o] or ready[o, m]
    m.then.birth[x] = m.birth[x] and m.then.sequence[x] = m.sequence[x].(seqs/next) and m.then.mode[x] = o.mode2
    m.then.sequence[x].parity = Even => (m.then.size0[x] = o.size2 and m.then.size1[x] = m.size1[x])
        else (m.then.size1[x] = o.size2 and m.then.size0[x] = m.size0[x])
}
-- state::Ready: clean descriptors and clean content.
pred ready[o: Op, m: Moment] {
    needs_descriptors[o, m, Clean] or some WithoutDescriptorsClean and {
        m.state[o][adopted[o]] in Adopted and m.state[o][o.turns + o.clears] in Turned and m.state[o][o.dies] in Dying
    }
    needs_content[o, m, Clean] or some WithoutContentClean and m.content[o].Persistence = content_pages[o]
}

-- Transitions of pages -------------------------------------------------------------------------------------------------

-- A directory's new page: zeros around the cache, and the rest of a long first name.
pred zero[o: Op, x: Page, m: Moment] { -- DirPage::zero
    goes[o, x, m, Clean, Free, InFlight, Zeroed]
    x = o.room and no rest_slot[o] and desc_as[m.then, m, x]
}
pred fill[o: Op, x: Page, m: Moment] { -- DirPage::fill
    goes[o, x, m, Clean, Free, InFlight, Filled]
    x = o.room and some rest_slot[o] and desc_as[m.then, m, x]
}
pred adopt_zeroed[o: Op, x: Page, m: Moment] { -- DirPage::adopt
    goes[o, x, m, Clean, Zeroed, Dirty, Adopted]
    joins_directory[o, x, m]
}
pred adopt_filled[o: Op, x: Page, m: Moment] { -- DirPage::adopt
    goes[o, x, m, Clean, Filled, Dirty, Adopted]
    joins_directory[o, x, m]
}
-- Mutant: zeros in the fence of the descriptor.
pred adopt_too_early[o: Op, x: Page, m: Moment] {
    some WithoutRoomZeroed
    goes[o, x, m, InFlight, Zeroed, Dirty, Adopted]
    joins_directory[o, x, m]
}
pred open_zeroed[o: Op, x: Page, m: Moment] { -- DirPage::open
    goes[o, x, m, InFlight, Adopted, InFlight, Opened]
    x = o.room and no rest_slot[o] and desc_as[m.then, m, x]
}
pred open_filled[o: Op, x: Page, m: Moment] { -- DirPage::open
    goes[o, x, m, InFlight, Adopted, InFlight, Opened]
    x = o.room and some rest_slot[o] and desc_as[m.then, m, x]
}
pred joins_directory[o: Op, x: Page, m: Moment] {
    x = o.room
    m.then.owned_by[x] = o.dst and m.then.offset[x] = o.room_at and m.then.holds[x] = Directory
    life_is[m.then, x, seqs/first, Written, Written]
}

-- Pages of files.
pred adopt_page[o: Op, x: Page, m: Moment] { -- Descriptors<Before>::adopt
    goes[o, x, m, Clean, Free, Dirty, Adopted]
    o.becomes[x] = Written and joins_file[o, x, m]
}
pred reserve_before[o: Op, x: Page, m: Moment] { -- Descriptors<Before>::reserve
    goes[o, x, m, Clean, Free, Dirty, Adopted]
    o.becomes[x] = Unwritten and not one_fence[o] and joins_file[o, x, m]
}
pred reserve_beside[o: Op, x: Page, m: Moment] { -- Descriptors<Beside>::reserve
    goes[o, x, m, Clean, Free, Dirty, Adopted]
    o.becomes[x] = Unwritten and one_fence[o] and joins_file[o, x, m]
}
pred joins_file[o: Op, x: Page, m: Moment] {
    x in adopted[o]
    m.then.owned_by[x] = (o.call = Symlink => o.born else o.on) and m.then.offset[x] = o.adopts[x] and m.then.holds[x] = Data
    (o.call = Symlink or some WithoutMarks) => life_is[m.then, x, seqs/first, o.becomes[x], o.becomes[x]]
        else life_is[m.then, x, m.sequence_after[o], Absent, o.becomes[x]]
}
fun sequence_after[m: Moment, o: Op]: lone Seq { o.begins.sequence[o.on.ino].(seqs/next) }
pred turn[o: Op, x: Page, m: Moment] { -- Descriptors<Before>::turn
    goes[o, x, m, Clean, Live, Dirty, Turned]
    x in o.turns and marked[o, x, m, Written]
}
pred clear_page[o: Op, x: Page, m: Moment] { -- Descriptors<Before>::clear
    goes[o, x, m, Clean, Live, Dirty, Turned]
    x in o.clears and marked[o, x, m, Unwritten]
}
pred die[o: Op, x: Page, m: Moment] { -- Descriptors<Before>::die
    goes[o, x, m, Clean, Live, Dirty, Dying]
    x in o.dies and not one_fence[o] and marked[o, x, m, Absent]
}
pred trim[o: Op, x: Page, m: Moment] { -- Descriptors<Beside>::trim
    goes[o, x, m, Clean, Live, Dirty, Dying]
    x in o.dies and one_fence[o] and marked[o, x, m, Absent]
}
-- A mark: the state changes once the owner has its next sequence.
pred marked[o: Op, x: Page, m: Moment, is: PageState] {
    owner_as[m.then, m, x] and offset_as[m.then, m, x]
    some WithoutMarks => life_is[m.then, x, seqs/first, is, is] else life_is[m.then, x, m.sequence_after[o], m.nxt[x], is]
}
-- A page of a directory that goes: it must not be read as slots again.
pred kill[o: Op, x: Page, m: Moment] { -- Descriptors<Killed>::kill
    goes[o, x, m, Clean, Live, Dirty, Killed]
    x in o.kills and no WithoutKill
    owner_as[m.then, m, x] and offset_as[m.then, m, x] and life_none[m.then, x]
}

-- Steps -----------------------------------------------------------------------------------------------------------------

pred slot_moves[o: Op, x: Slot, m: Moment] {
    continue_name[o, x, m] or name_short[o, x, m] or name_long[o, x, m]
    or commit_birth_beside[o, x, m] or commit_birth[o, x, m] or commit_link[o, x, m]
    or aim_new[o, x, m] or aim_swap_new[o, x, m] or aim_over[o, x, m] or aim_exchange[o, x, m] or aim_swap_over[o, x, m] or commit_aimed[o, x, m] or commit_swap[o, x, m]
    or clear[o, x, m] or remove[o, x, m] or swap[o, x, m]
    or commit_too_early[o, x, m] or aim_swap_too_early[o, x, m] or second_too_early[o, x, m]
}
pred inode_moves[o: Op, x: Inode, m: Moment] {
    init[o, x, m] or init_bodied[o, x, m] or complete[o, x, m] or complete_inline[o, x, m] or commit_inode[o, x, m] or complete_too_early[o, x, m]
}
pred page_moves[o: Op, x: Page, m: Moment] {
    zero[o, x, m] or fill[o, x, m] or adopt_zeroed[o, x, m] or adopt_filled[o, x, m] or open_zeroed[o, x, m] or open_filled[o, x, m]
    or adopt_too_early[o, x, m]
    or adopt_page[o, x, m] or reserve_before[o, x, m] or reserve_beside[o, x, m] or turn[o, x, m] or clear_page[o, x, m] or die[o, x, m] or trim[o, x, m]
    or kill[o, x, m]
}
-- The object makes a transition.
pred goes_on[o: Op, x: Object, m: Moment] { begun[o, m] and m.state[o][x] != m.then.state[o][x] }
-- `flush` before a fence, and the fence. What is flushed and fenced in one step was flushed first.
pred fence[o: Op, x: Object, m: Moment] {
    m.persistence[o][x] = InFlight => m.then.persistence[o][x] = Clean
    else m.persistence[o][x] = Dirty => (m.then.persistence[o][x] = Clean and flushable[o, x, m] or m.then.persistence[o][x] = Dirty)
    else m.then.persistence[o][x] = Clean
}
pred flush_or_rest[o: Op, x: Object, m: Moment] {
    m.then.persistence[o][x] = m.persistence[o][x]
    or m.persistence[o][x] = Dirty and m.then.persistence[o][x] = InFlight and flushable[o, x, m]
}
pred stays[o: Op, x: Object, m: Moment] { o in m.fencing => fence[o, x, m] else flush_or_rest[o, x, m] }
-- A slot's line is written back when it has its commit word, and its rest by itself.
pred flushable[o: Op, x: Object, m: Moment] { m.state[o][x] not in Named + Aimed }



-- Slots of pages that are zeroed, or overwritten with content, in this step.
fun zeroing[m: Moment]: set Page { { p: Page | some o: Op | goes_on[o, p, m] and m.then.state[o][p] in Zeroed + Filled } }
fun storing[m: Moment]: set Page { { p: Page | some o: Op | begun[o, m] and no m.content[o][p] and some m.then.content[o][p] } }
pred rest_stored[o: Op, s: Slot, m: Moment] { m.then.rest[s] = o.name and dead[m.then, s] }
pred dead[i: Image, s: Slot] {
    no i.commit[s] and no_pointer[i, s] and no i.other[s] and no i.low[s] and no i.tag[s] and no i.head[s]
}

fact moving {
    all m: Moment - moments/last {
        all o: Op {
            not begun[o, m] => o not in m.fencing
            begun[o, m] => {
                all x: slots[o] | goes_on[o, x, m] => o not in m.fencing and slot_moves[o, x, m] else stays[o, x, m]
                all x: inodes[o] | goes_on[o, x, m] => o not in m.fencing and inode_moves[o, x, m] else stays[o, x, m]
                all x: pages[o] | goes_on[o, x, m] => o not in m.fencing and page_moves[o, x, m] else stays[o, x, m]
            }
            -- content, around the cache
            all p: content_pages[o] | begun[o, m] => (some m.content[o][p]
                => m.then.content[o][p] = (o in m.fencing => Clean else m.content[o][p])
                else m.then.content[o][p] in (o in m.fencing => none else InFlight))
        }
        all s: Slot {
            s.page in zeroing[m] => ((some o: Op | s = rest_slot[o] and m.then.state[o][s.page] = Filled and rest_stored[o, s, m])
                or (no o: Op | s = rest_slot[o] and o.room = s.page) and dead[m.then, s] and no m.then.rest[s])
            -- content reads as any slots
            else s.page not in storing[m] => {
                (some o: Op | goes_on[o, s, m]) or slot_as[m.then, m, s]
                    or (some o: Op | s = rest_slot[o] and goes_on[o, o.to, m] and m.then.state[o][o.to] = Continued and rest_stored[o, s, m])
                all o: Op | (s = rest_slot[o] and goes_on[o, o.to, m] and m.then.state[o][o.to] = Continued) => rest_stored[o, s, m]
            }
        }
        all n: Inode | (some o: Op | goes_on[o, n, m]) or inode_as[m.then, m, n]
        all p: Page {
            (some o: Op | goes_on[o, p, m]) or desc_as[m.then, m, p]
            p in storing[m] => (some o: Op | no m.content[o][p] and some m.then.content[o][p] and m.then.data[p] = byte_after[o, at_offset[o, p]])
                else (p in zeroing[m] or m.then.data[p] = m.data[p])
        }
    }
    all m: Moment, o: Op {
        m.persistence[o].Persistence = (begun[o, m] => objects[o] else none)
        m.state[o].State = (begun[o, m] => objects[o] else none)
        all x: objects[o] | lone m.state[o][x]
        m.content[o].Persistence in (begun[o, m] => content_pages[o] else none)
        m = o.begins => no m.content[o] and all x: objects[o] | m.persistence[o][x] = Clean and m.state[o][x] = at_rest[o, x]
    }
    no moments/last.fencing
    -- pauses come first: a run that pauses elsewhere shows nothing more
    all m: Moment - moments/last | idle[m] => all k: moments/prevs[m] | idle[k]
}
pred idle[m: Moment] {
    m.persistence = m.then.persistence and m.state = m.then.state and m.content = m.then.content
    Second.begins != m.then
}
fun at_offset[o: Op, p: Page]: lone Off { some o.adopts[p] => o.adopts[p] else o.begins.offset[p] }

-- The power cut ---------------------------------------------------------------------------------------------------------

-- Fences that cover a line: it holds at least what it held then.
pred covers_slot[m: Moment, s: Slot] {
    some o: m.fencing {
        m.persistence[o][s] in Dirty + InFlight and m.then.persistence[o][s] = Clean
        or s = rest_slot[o] and m.state[o][o.to] = Continued and m.persistence[o][o.to] in Dirty + InFlight and m.then.persistence[o][o.to] = Clean
        or m.state[o][s.page] in Zeroed + Filled and m.persistence[o][s.page] = InFlight
        or m.content[o][s.page] = InFlight
    }
}
pred covers[m: Moment, x: Object] {
    some o: m.fencing | m.persistence[o][x] in Dirty + InFlight and m.then.persistence[o][x] = Clean
}
pred covers_bytes[m: Moment, p: Page] { some o: m.fencing | m.content[o][p] = InFlight }

-- A line that was cut within a transition of several words: it holds the first of them.
pred partial_slot[o: Op, s: Slot, m: Moment] {
    goes_on[o, s, m]
    let n = m.then {
        -- over a name: the old pointer goes first, then other, pointer, tag
        n.state[o][s] = Aimed and m.state[o][s] = Live and some m.commit[s] and {
            some WithoutPointerBeforeCommit and commit_as[Lost, n, s] and pointer_as[Lost, m, s] and other_as[Lost, m, s] and body_as[Lost, m, s]
            or commit_as[Lost, m, s] and body_as[Lost, m, s] and {
                no WithoutPointerCleared and no_pointer[Lost, s] and (other_as[Lost, m, s] or other_as[Lost, n, s])
                or some WithoutPointerCleared and pointer_as[Lost, m, s] and other_as[Lost, n, s]
                or pointer_as[Lost, n, s] and other_as[Lost, n, s]
            }
        }
        or n.state[o][s] = Aimed and m.state[o][s] = Named and some WithoutPointerBeforeCommit
            and commit_as[Lost, n, s] and pointer_as[Lost, m, s] and other_as[Lost, m, s] and body_as[Lost, m, s]
        or n.state[o][s] = Swapped and no_pointer[Lost, s] and other_as[Lost, m, s] and {
            commit_as[Lost, m, s] and body_as[Lost, m, s]
            or no WithoutInodeBeforeTag and commit_as[Lost, n, s] and body_as[Lost, m, s]
            or some WithoutInodeBeforeTag and commit_as[Lost, m, s] and body_as[Lost, n, s]
        }
        or some WithoutCommitWordLast and n.state[o][s] = Committed and m.state[o][s] = Free
            and commit_as[Lost, n, s] and pointer_as[Lost, m, s] and other_as[Lost, m, s] and body_as[Lost, m, s]
    }
}
pred partial_inode[o: Op, x: Inode, m: Moment] {
    goes_on[o, x, m]
    let n = m.then {
        n.state[o][x] in Init + Bodied and m.state[o][x] = Free and {
            no WithoutBirthLast and Lost.birth[x] = m.birth[x] and (word_as[Lost, m, x] or word_as[Lost, n, x]) and (sizes_as[Lost, m, x] or sizes_as[Lost, n, x])
            or some WithoutBirthLast and Lost.birth[x] = n.birth[x] and word_as[Lost, m, x] and sizes_as[Lost, m, x]
        }
        or n.state[o][x] = Changed and Lost.birth[x] = m.birth[x] and {
            no WithoutSizeBeforeCommit and word_as[Lost, m, x] and sizes_as[Lost, n, x]
            or some WithoutSizeBeforeCommit and word_as[Lost, n, x] and sizes_as[Lost, m, x]
        }
    }
}
-- Words of another life: neutral first, alive last.
pred partial_page[o: Op, x: Page, m: Moment] {
    goes_on[o, x, m] and m.then.state[o][x] = Adopted
    let n = m.then {
        no WithoutLifeNeutral => life_none[Lost, x] else life_as[Lost, m, x]
        owner_as[Lost, m, x] and offset_as[Lost, m, x] or owner_as[Lost, n, x] and (offset_as[Lost, m, x] or offset_as[Lost, n, x])
    }
}
fact cut {
    all s: Slot | let m = Settled.line[s] {
        slot_as[Lost, m, s] or some o: Op | partial_slot[o, s, m]
        no k: Moment | covers_slot[k, s] and moments/gt[k, m]
    }
    all n: Inode | let m = Settled.line[n] {
        inode_as[Lost, m, n] or some o: Op | partial_inode[o, n, m]
        no k: Moment | covers[k, n] and moments/gt[k, m]
    }
    all p: Page | let m = Settled.line[p] {
        desc_as[Lost, m, p] or some o: Op | partial_page[o, p, m]
        no k: Moment | covers[k, p] and moments/gt[k, m]
    }
    all p: Page | let m = Settled.bytes[p] {
        Lost.data[p] = m.data[p]
        no k: Moment | covers_bytes[k, p] and moments/gt[k, m]
    }
    repaired[Lost, Cut, none]
    repaired[Cut, Recovered, Recovered]
}

-- The beginning: any volume at rest. Readers of images are asked for these alone.
fact beginning {
    sound[moments/first]
    all i: Lost + Cut + Recovered + Op.begins + moments/first + moments/last | looked_at[i]
    all i: Moment - (Op.begins + moments/first + moments/last) | no i.live + i.reach and no i.means and no i.tree
}
