-- The words of a volume, how a mount reads them, and what recovery stores.
--
-- Each word is a field of `Image`, under the names of crates/pmfs/src/layout.rs. Images are what the processor sees at a moment,
-- what a power cut leaves, and what recovery makes of it. A sig `Without...` is a rule that is left out: it is empty unless a
-- command gives it a scope.
module volume

open util/ordering[Gen] as gens
open util/ordering[Seq] as seqs
open util/ordering[Off] as offs

-- Objects ---------------------------------------------------------------------------------------------------------------

abstract sig Object {}
sig Inode extends Object {}
-- A page stands for its descriptor, too.
sig Page extends Object {}
-- `following`: the slot that holds the rest of a long name.
sig Slot extends Object { page: one Page, following: lone Slot }
fact {
    all s: Slot | s not in s.following and s.following.page in s.page
    all disj s, t: Slot | no s.following & t.following
}

-- Values ----------------------------------------------------------------------------------------------------------------

sig Gen {}
enum Kind { Dir, File }
-- An inode of one generation: layout::InodeRef. The kind lies in the birth word, so a life has one.
sig Ref { ino: one Inode, gen: one Gen, kind: one Kind }
one sig Root extends Ref {}
fact {
    all disj a, b: Ref | a.ino != b.ino or a.gen != b.gen
    Root.kind = Dir and Root.gen = gens/first
    all r: Ref - Root | r.ino != Root.ino
}

-- A pointer stores a tag in two halves, a slot its own in one word.
sig Half {}
sig Tag { hi: one Half, lo: one Half }
fact { all disj a, b: Tag | a.hi != b.hi or a.lo != b.lo }

sig Name {}
-- Names that need a second slot.
sig Long in Name {}
-- What a long name reads as if its rest is another's.
one sig Torn extends Name {}
fact { Torn not in Long }

enum Parity { Even, Odd }
-- An inode's sequence; the first is 0.
sig Seq { parity: one Parity }
fact { seqs/first.parity = Even and all s: Seq - seqs/last | s.(seqs/next).parity != s.parity }
-- Pages of a file or directory by their offset. A size is the set of offsets before the end.
sig Off {}
pred is_size[s: set Off] { all o: s | offs/prevs[o] in s }

enum PageState { Absent, Unwritten, Written }
enum PageKind { Data, Directory }
sig Value {}
one sig Zero extends Value {}
sig Mode {}

-- The words -------------------------------------------------------------------------------------------------------------

abstract sig Image {
    -- slot, byte 0: commit word
    commit: Slot -> lone Ref,
    -- byte 8: rename pointer
    place: Slot -> lone Slot,
    exchange: set Slot,
    high: Slot -> lone Half,
    -- byte 16: inode of an exchange, low half of the tag
    other: Slot -> lone Inode,
    low: Slot -> lone Half,
    -- byte 24: own tag
    tag: Slot -> lone Tag,
    -- byte 32: the name's head; `rest` is what a slot holds for the slot before it
    head: Slot -> lone Name,
    rest: Slot -> lone Name,
    -- inode, byte 0: birth; byte 8: commit {sequence, mode}; bytes 16 to 47: size by parity
    birth: Inode -> lone Ref,
    sequence: Inode -> one Seq,
    mode: Inode -> one Mode,
    size0, size1: Inode -> Off,
    -- descriptor, byte 0: owner; byte 8: offset, kind; byte 16: life {at, cur, next}
    owned_by: Page -> lone Ref,
    offset: Page -> lone Off,
    holds: Page -> lone PageKind,
    at: Page -> one Seq,
    cur: Page -> one PageState,
    nxt: Page -> one PageState,
    -- content of a page that is no directory's
    data: Page -> one Value,

    -- What a mount reads, for images that are looked at: live slots, what each names when renames are finished, inodes that the
    -- root leads to.
    live: set Slot,
    means: Slot -> lone Ref,
    reach: set Ref,
    tree: Ref -> Name -> Ref
}
-- What a power cut leaves; a recovery that is cut; a recovery that ends.
one sig Lost, Cut, Recovered extends Image {}

fact {
    all i: Image, n: Inode | i.birth[n].ino in n and is_size[i.size0[n]] and is_size[i.size1[n]]
    Torn not in Image.head[Slot] + Image.rest[Slot]
}

-- Rules that mutants leave out: what a reader compares ----------------------------------------------------------------

sig WithoutGenerations {}
sig WithoutPointerTags {}
sig WithoutPointerInodes {}
-- recovery
sig WithoutDanglingDropped {}
sig WithoutMarksReverted {}
sig WithoutRenamesFinished {}
sig WithoutPointersOutdated {}
sig WithoutStrayPagesKilled {}
sig WithoutInodeBeforeTag {}

-- What a mount reads --------------------------------------------------------------------------------------------------

-- A reference counts if the inode has that generation.
fun valid[i: Image]: set Ref {
    no WithoutGenerations => i.birth[Inode] else { r: Ref | some i.birth[r.ino] }
}

-- The pages whose content is read as slots.
fun directory_pages[i: Image]: set Page {
    i.holds.Directory & i.at.(seqs/first) & i.nxt.Written & i.owned_by.(valid[i] & kind.Dir)
}

-- Pointers that name a live slot by its present tag: destination -> source.
fun pointed[i: Image]: Slot -> Slot {
    { d, s: i.live | d != s and i.place[d] = s
        and (no WithoutPointerTags => (i.high[d] = i.tag[s].hi and i.low[d] = i.tag[s].lo)) }
}

-- Those of a rename that was cut after its commit: both slots still name the inode.
fun effective[i: Image]: Slot -> Slot {
    { d, s: Slot | d -> s in pointed[i] and (no WithoutPointerInodes => i.commit[d] = i.commit[s]) }
}

-- What the source of an effective pointer is to name.
fun meant[i: Image, s: Slot]: lone Ref {
    i.birth[i.other[effective[i].s & i.exchange]]
}

fun called[i: Image, s: Slot]: lone Name {
    (i.head[s] in Long and i.rest[s.following] != i.head[s]) => Torn else i.head[s]
}
fun directory_of[i: Image, s: Slot]: lone Ref { i.owned_by[s.page] }

pred looked_at[i: Image] {
    i.live = { s: page.(directory_pages[i]) | some i.commit[s] & valid[i] }
    all s: Slot | i.means[s] = (s not in i.live => none
        else (no WithoutRenamesFinished and some effective[i].s) => meant[i, s] else i.commit[s])
    i.reach = Root.*{ d, r: Ref | some s: i.means.r | directory_of[i, s] = d }
    i.tree = { d: i.reach, n: Name, r: Ref | some s: i.means.r | directory_of[i, s] = d and called[i, s] = n }
}

fun files[i: Image]: set Ref { i.reach & kind.File }
fun size_of[i: Image, r: Ref]: set Off { i.sequence[r.ino].parity = Even => i.size0[r.ino] else i.size1[r.ino] }

-- The state of a page in its file, by its life word and the end of the file.
fun state_of[i: Image, p: Page]: one PageState {
    let r = i.owned_by[p], s = (seqs/gte[i.sequence[r.ino], i.at[p]] => i.nxt[p] else i.cur[p]) |
        (s = Written and i.offset[p] not in size_of[i, r]) => Absent else s
}
fun data_pages[i: Image]: set Page {
    { p: i.holds.Data & i.owned_by.(files[i] & valid[i]) | some i.offset[p] and state_of[i, p] != Absent }
}
-- What a read of a file returns at an offset.
fun read[i: Image, r: Ref, o: Off]: set Value {
    let p = { p: data_pages[i] & i.owned_by.r & i.offset.o | state_of[i, p] = Written } | some p => i.data[p] else Zero
}
fun used_pages[i: Image]: set Page { data_pages[i] + (directory_pages[i] & i.owned_by.(i.reach)) }

-- New tags are none of these.
fun used_tags[i: Image]: set Tag {
    i.tag[i.live] + { t: Tag | some d: i.live | i.high[d] = t.hi and i.low[d] = t.lo }
}

-- At rest -----------------------------------------------------------------------------------------------------------------

-- A generation that is yet to be born.
pred unborn[i: Image, r: Ref] { some r and (no i.birth[r.ino] or gens/gt[r.gen, i.birth[r.ino].gen]) }

-- Names: none dangles, none is doubled; a directory has one; nothing leads to the root.
pred legal_names[i: Image] {
    all s: page.(directory_pages[i]) | i.commit[s] in valid[i]
    all s: i.live | one called[i, s] and called[i, s] != Torn and one i.tag[s]
    all disj s, t: i.live | directory_of[i, s] = directory_of[i, t] => called[i, s] != called[i, t]
    all r: i.reach & kind.Dir | lone i.commit.r & i.live
    Root not in i.commit[i.live]
    all s: i.live | i.head[s] in Long => some s.following and no i.commit[s.following]
}
-- Nothing is reached twice: one page at an offset.
pred reached_once[i: Image] {
    all disj p, q: used_pages[i] | i.owned_by[p] = i.owned_by[q] => i.offset[p] != i.offset[q]
}
-- What holds of a volume after recovery, and between calls. Dead slots, free pages and free inodes hold anything that this does
-- not exclude. All checks begin in any such volume, and show that calls and recoveries lead to such volumes again: so
-- histories of any length are covered.
pred sound[i: Image] {
    i.birth[Root.ino] = Root
    legal_names[i]
    reached_once[i]
    -- a finished rename stays finished
    no pointed[i]
    directory_pages[i] in i.owned_by.(i.reach) & i.offset.Off
    all p: i.holds.Data & i.owned_by.(files[i]) {
        i.nxt[p] != Absent => some i.offset[p]
        seqs/gte[i.sequence[i.owned_by[p].ino], i.at[p]]
        i.nxt[p] = Written => i.offset[p] in size_of[i, i.owned_by[p]]
    }
    -- no descriptor waits for a life to come
    all p: Page | unborn[i, i.owned_by[p]] => (i.nxt[p] = Absent and i.at[p] = seqs/first)
    all p: Page | i.at[p] = seqs/first => i.cur[p] = i.nxt[p]
}

-- Words that are the same in two images -----------------------------------------------------------------------------------

pred pointer_as[i, j: Image, s: Slot] {
    i.place[s] = j.place[s] and i.high[s] = j.high[s]
    s in i.exchange iff s in j.exchange
}
pred other_as[i, j: Image, s: Slot] { i.other[s] = j.other[s] and i.low[s] = j.low[s] }
pred body_as[i, j: Image, s: Slot] { i.tag[s] = j.tag[s] and i.head[s] = j.head[s] and i.rest[s] = j.rest[s] }
pred commit_as[i, j: Image, s: Slot] { i.commit[s] = j.commit[s] }
pred slot_as[i, j: Image, s: Slot] { commit_as[i, j, s] and pointer_as[i, j, s] and other_as[i, j, s] and body_as[i, j, s] }
pred no_pointer[i: Image, s: Slot] { no i.place[s] and no i.high[s] and s not in i.exchange }

pred word_as[i, j: Image, n: Inode] { i.sequence[n] = j.sequence[n] and i.mode[n] = j.mode[n] }
pred sizes_as[i, j: Image, n: Inode] { i.size0[n] = j.size0[n] and i.size1[n] = j.size1[n] }
pred inode_as[i, j: Image, n: Inode] { i.birth[n] = j.birth[n] and word_as[i, j, n] and sizes_as[i, j, n] }

pred life_as[i, j: Image, p: Page] { i.at[p] = j.at[p] and i.cur[p] = j.cur[p] and i.nxt[p] = j.nxt[p] }
pred life_is[i: Image, p: Page, a: Seq, c, n: PageState] { i.at[p] = a and i.cur[p] = c and i.nxt[p] = n }
pred life_none[i: Image, p: Page] { life_is[i, p, seqs/first, Absent, Absent] }
pred owner_as[i, j: Image, p: Page] { i.owned_by[p] = j.owned_by[p] }
pred offset_as[i, j: Image, p: Page] { i.offset[p] = j.offset[p] and i.holds[p] = j.holds[p] }
pred desc_as[i, j: Image, p: Page] { life_as[i, j, p] and owner_as[i, j, p] and offset_as[i, j, p] }

-- Recovery ------------------------------------------------------------------------------------------------------------------

fun recovered_commit[i: Image, s: Slot]: lone Ref {
    s.page not in directory_pages[i] => i.commit[s]
    else (i.commit[s] not in valid[i] and no WithoutDanglingDropped) => none
    else (some effective[i].s and no WithoutRenamesFinished) => meant[i, s]
    else i.commit[s]
}
-- A pointer that stays, finished or never committed, must not match again.
pred outdated[i: Image, s: Slot] { some pointed[i].s and some recovered_commit[i, s] and no WithoutPointersOutdated }

-- The state that recovery settles a page in; none if its life word stays.
fun recovered_state[i: Image, p: Page]: lone PageState {
    (i.owned_by[p] in files[i] & valid[i] and i.holds[p] = Data and no WithoutMarksReverted) => (life_stands[i, p] => none else state_of[i, p])
    else (unborn[i, i.owned_by[p]] and not life_none[i, p]) => Absent
    else (p in directory_pages[i] and i.owned_by[p] not in i.reach and no WithoutStrayPagesKilled) => Absent
    else none
}
pred life_stands[i: Image, p: Page] { seqs/gte[i.sequence[i.owned_by[p].ino], i.at[p]] and state_of[i, p] = i.nxt[p] }

-- What recovery of `i` stores. `j` has all of it, or, if `whole` is empty, any of it: each line up to any store.
pred repaired[i, j: Image, whole: set Image] {
    all s: Slot {
        pointer_as[i, j, s] and other_as[i, j, s] and i.head[s] = j.head[s] and i.rest[s] = j.rest[s]
        let c = recovered_commit[i, s] {
            outdated[i, s] => {
                j.commit[s] = c and one j.tag[s] and j.tag[s] not in used_tags[i]
                or no whole and body_as[i, j, s] and (j.commit[s] = c or commit_as[i, j, s])
                or no whole and some WithoutInodeBeforeTag and commit_as[i, j, s] and one j.tag[s] and j.tag[s] not in used_tags[i]
            } else {
                body_as[i, j, s]
                j.commit[s] = c or no whole and commit_as[i, j, s]
            }
        }
    }
    all disj s, t: Slot | (outdated[i, s] and outdated[i, t] and j.tag[s] != i.tag[s]) => j.tag[s] != j.tag[t]
    all n: Inode | inode_as[i, j, n]
    all p: Page {
        owner_as[i, j, p] and offset_as[i, j, p] and i.data[p] = j.data[p]
        let s = recovered_state[i, p] | no s => life_as[i, j, p] else {
            (s = Absent => life_none[j, p] else life_is[j, p, seqs/first, s, s]) or no whole and life_as[i, j, p]
        }
    }
}
-- Nothing is left to repair.
pred nothing_to_repair[i: Image] {
    all s: Slot | recovered_commit[i, s] = i.commit[s] and not outdated[i, s]
    all p: Page | no recovered_state[i, p]
}
