-- Calls: what each is given, and what it does to the tree.
module calls

open volume
open util/ordering[Moment] as moments
open util/ordering[Gen] as gens
open util/ordering[Seq] as seqs
open util/ordering[Off] as offs

enum Persistence { Clean, Dirty, InFlight }

-- The operational states of crates/pmfs/src/state/transitions.rs.
abstract sig State {}
one sig Free, Live extends State {}
one sig Bodied, Init, Changed extends State {}
one sig Continued, Named, Aimed, Committed, Cleared, Swapped extends State {}
one sig Zeroed, Filled, Adopted, Opened, Turned, Dying, Killed extends State {}

-- What the processor sees, and the typestates that calls hold. The power is cut at the last moment.
sig Moment extends Image {
    persistence: Op -> Object -> lone Persistence,
    state: Op -> ((Slot -> (Free + Live + Continued + Named + Aimed + Committed + Cleared + Swapped))
        + (Inode -> (Free + Live + Bodied + Init + Changed))
        + (Page -> (Free + Live + Zeroed + Filled + Adopted + Opened + Turned + Dying + Killed))),
    -- content that was stored
    content: Op -> Page -> lone Persistence,
    -- calls that fence before the next moment
    fencing: set Op
}
-- Up to which of its stores each line has reached the medium when the power is cut.
one sig Settled { line: Object -> one Moment, bytes: Page -> one Moment }

enum Call { Create, Symlink, Link, Remove, Rename, Exchange, Whiteout, Change }

-- A call and what it was given: everything is reserved before the first store.
abstract sig Op {
    call: one Call,
    begins: one Moment,
    -- the inode that it makes, that it names or changes, and that loses the name `to` (in an exchange: that moves to `from`)
    born, on, gone: lone Ref,
    -- the directories, slots and names: old and new
    src, dst: lone Ref,
    from, to: lone Slot,
    old, name: lone Name,
    -- tags for `to` and, if it goes on naming something, for `from`
    fresh, renew: lone Tag,
    -- a new page for the directory, and where
    room: lone Page,
    room_at: lone Off,
    -- pages of the directory that is removed
    kills: set Page,
    -- new pages with offset and state; unwritten ones that are written; written ones that are to read as zeros; those that go
    adopts: Page -> lone Off,
    becomes: Page -> lone PageState,
    turns, clears, dies: set Page,
    -- what the caller asked for
    writes: Off -> lone Value,
    punches: set Off,
    size2: set Off,
    mode2: lone Mode
}
-- The second call begins with the first, or later.
one sig First extends Op {}
lone sig Second extends Op {}
fact { First.begins = moments/first }

-- Rules that mutants leave out.
sig WithoutFreedClean {}
sig WithoutLocks {}
sig WithoutMarks {}
sig WithoutKill {}

pred begun[o: Op, m: Moment] { moments/gte[m, o.begins] }

-- The slot that takes the rest of a new name.
fun rest_slot[o: Op]: lone Slot { (o.name in Long and no o.gone) => o.to.following else none }
fun adopted[o: Op]: set Page { o.adopts.Off }
-- Pages that get content.
fun content_pages[o: Op]: set Page { o.becomes.Written + o.turns }
fun pages[o: Op]: set Page { o.room + o.kills + adopted[o] + o.turns + o.clears + o.dies }
fun inodes[o: Op]: set Inode { o.born.ino + (o.call in Link + Change => o.on.ino else none) }
fun slots[o: Op]: set Slot { o.from + o.to }
fun objects[o: Op]: set Object { slots[o] + inodes[o] + pages[o] }

fun at_rest[o: Op, x: Object]: one State {
    (x in o.born.ino + o.room + adopted[o] or x in o.to and no o.gone and (no o.room or no rest_slot[o])) => Free
    else (x in o.to and no o.gone) => Continued
    else Live
}

-- Has made all its stores, and fenced.
pred finished[o: Op, m: Moment] {
    begun[o, m]
    all x: objects[o] | m.persistence[o][x] = Clean
    m.content[o] = content_pages[o] -> Clean
    m.state[o][o.to] in Committed
    m.state[o][o.from] in Cleared + Swapped
    m.state[o][o.born.ino] in Init
    m.state[o][o.room] in Opened
    m.state[o][adopted[o]] in Adopted
    m.state[o][o.turns + o.clears] in Turned
    m.state[o][o.dies] in Dying
    no WithoutKill => m.state[o][o.kills] in Killed
    o.call = Change => m.state[o][o.on.ino] = Changed
}
fun done: set Op { { o: Op | finished[o, moments/last] } }

-- Locks ---------------------------------------------------------------------------------------------------------------

-- Directories that change, inodes that change or lose a name. All for itself.
fun locks[o: Op]: set Ref {
    o.src + o.dst + o.born + (o.call in Link + Remove + Change => o.on else none) + (o.call in Rename + Whiteout => o.gone else none)
}
-- The lock of renames that move directories.
pred moves_directory[o: Op] { o.call in Rename + Exchange + Whiteout and Dir in (o.on + o.gone).kind }

-- What a call frees it holds until its last fence.
fun frees[o: Op, i: Image]: set Object {
    (o.old in Long => o.from.following else none)
    + let r = (o.call = Remove => o.on else o.call in Rename + Whiteout => o.gone else none) | r.ino + i.owned_by.r
}
fun held[o: Op, i: Image]: set Object {
    no WithoutFreedClean => objects[o] + rest_slot[o] + frees[o, i] else objects[o] + rest_slot[o] - (o.from + o.dies + o.kills)
}

-- What a call is given ------------------------------------------------------------------------------------------------

fun now[o: Op]: Moment { o.begins }

pred free_page[o: Op, p: Page] { p not in used_pages[now[o]] }
pred free_slot[o: Op, s: Slot] {
    s.page in directory_pages[now[o]] and directory_of[now[o], s] in now[o].reach
    no now[o].commit[s]
    no t: now[o].live | t.following = s and now[o].head[t] in Long
}
pred gets_inode[o: Op] {
    one o.born and o.born.ino not in now[o].reach.ino
    some now[o].birth[o.born.ino] => o.born.gen = now[o].birth[o.born.ino].gen.(gens/next) else o.born.gen = gens/first
    some o.mode2
}
pred no_inode[o: Op] { no o.born and no o.mode2 + o.size2 }
pred is_directory[o: Op, d: Ref] { one d and d in now[o].reach and d.kind = Dir }
pred no_old_name[o: Op] { no o.src + o.from + o.old + o.renew }
pred no_new_name[o: Op] { no o.dst + o.to + o.name + o.fresh + o.gone + o.room + o.room_at }
pred no_pages[o: Op] { no o.adopts + o.becomes and no o.turns + o.clears + o.dies and no o.punches + o.writes.Value }

pred gets_slot[o: Op] {
    is_directory[o, o.dst]
    one o.to and one o.fresh and one o.name and o.name != Torn
    no o.name.(now[o].tree[o.dst])
    no now[o].tree[o.dst][o.name]
    no o.gone
    some o.room => {
        o.to.page = o.room and free_page[o, o.room]
        one o.room_at and no p: directory_pages[now[o]] | now[o].owned_by[p] = o.dst and now[o].offset[p] = o.room_at
    } else {
        free_slot[o, o.to] and directory_of[now[o], o.to] = o.dst
        no o.room_at
    }
    o.name in Long => (some o.to.following and (some o.room or free_slot[o, o.to.following]))
}
pred holds_name[o: Op, d: Ref, s: Slot, n: Name, r: Ref] {
    is_directory[o, d] and one r and one n
    s in now[o].live and directory_of[now[o], s] = d and called[now[o], s] = n and now[o].means[s] = r
}
pred replaces[o: Op] {
    one o.to and holds_name[o, o.dst, o.to, o.name, o.gone]
    one o.fresh and no o.room + o.room_at
    o.gone != o.on
}
-- The pages of a directory that goes: it is empty.
pred removes_directory[o: Op, r: Ref] {
    no now[o].tree[r]
    o.kills = { p: directory_pages[now[o]] | now[o].owned_by[p] = r }
}
-- No directory moves below itself.
pred keeps_tree[o: Op] {
    let below = { d, r: Ref | some n: Name | d -> n -> r in now[o].tree } {
        o.dst not in o.on.*below
        o.call = Exchange => o.src not in o.gone.*below
        -- an ancestor is no empty directory, and is not replaced
        some o.gone => o.src not in o.gone.*below
    }
}
pred moves[o: Op] {
    no_pages[o] and one o.from
    holds_name[o, o.src, o.from, o.old, o.on] and o.from != o.to
    keeps_tree[o]
}

pred creates[o: Op] { o.call = Create and gets_inode[o] and gets_slot[o] and no_old_name[o] and no_pages[o] and no o.on + o.kills + o.size2 }
pred symlinks[o: Op] {
    o.call = Symlink and gets_inode[o] and gets_slot[o] and no_old_name[o] and no o.on + o.kills + o.turns + o.clears + o.dies + o.punches
    o.born.kind = File and o.size2 = offs/first
    -- a target in a page, or in the inode: then it has no page here
    lone adopted[o] and all p: adopted[o] | free_page[o, p] and p != o.room
    o.adopts = adopted[o] -> offs/first and o.becomes = adopted[o] -> Written
    some adopted[o] => one o.writes and o.writes.Value = offs/first else no o.writes
}
pred links[o: Op] {
    o.call = Link and gets_slot[o] and no_inode[o] and no_old_name[o] and no_pages[o] and no o.kills
    one o.on and o.on in files[now[o]]
}
pred removal[o: Op] {
    o.call = Remove and no_inode[o] and no_new_name[o] and no_pages[o] and no o.renew and one o.from
    holds_name[o, o.src, o.from, o.old, o.on]
    o.on.kind = Dir => removes_directory[o, o.on] else no o.kills
}
pred goes_over_or_new[o: Op] {
    gets_slot[o] or replaces[o] and o.gone.kind = o.on.kind
    o.gone.kind = Dir => removes_directory[o, o.gone] else no o.kills
}
pred renames[o: Op] { o.call = Rename and no_inode[o] and moves[o] and no o.renew and goes_over_or_new[o] }
pred exchanges[o: Op] { o.call = Exchange and no_inode[o] and moves[o] and one o.renew and replaces[o] and no o.kills }
pred whiteouts[o: Op] {
    o.call = Whiteout and gets_inode[o] and o.born.kind = File and no o.size2 and moves[o] and one o.renew and goes_over_or_new[o]
}
-- Size, mode and pages of one file: write, truncate, punch, zero, fallocate, chmod, chown.
pred changes[o: Op] {
    o.call = Change and no_new_name[o] and no_old_name[o] and no o.born + o.kills
    one o.on and o.on in files[now[o]] and one o.mode2 and is_size[o.size2]
    some now[o].sequence[o.on.ino].(seqs/next)
    o.writes.Value in o.size2 and no o.punches & o.writes.Value
    let i = now[o], mine = { p: data_pages[i] | i.owned_by[p] = o.on }, stay = mine - o.dies {
        adopted[o] = o.becomes.PageState and o.becomes[adopted[o]] in Unwritten + Written
        all p: adopted[o] | free_page[o, p]
        -- what is reserved, was a hole
        all p: o.becomes.Unwritten | no q: mine | i.offset[q] = o.adopts[p]
        o.turns + o.clears in stay and o.dies in mine
        all p: o.turns | state_of[i, p] = Unwritten
        all p: o.clears | state_of[i, p] = Written
        all f: Off | lone (o.adopts.f + { p: stay | i.offset[p] = f })
        -- written pages past the end go
        all p: stay - o.clears | (state_of[i, p] = Written or p in o.turns) => i.offset[p] in o.size2
        all p: adopted[o] | o.becomes[p] = Written => o.adopts[p] in o.size2
        -- each page reads as it should afterwards: those that get content do so by `byte_after`
        all f: o.size2 | let new = o.adopts.f & content_pages[o], kept = { p: stay | i.offset[p] = f } |
            (some new or some kept & o.turns) or (some kept - o.clears and state_of[i, kept] = Written => i.data[kept] else Zero) = byte_after[o, f]
    }
}
fun byte_after[o: Op, f: Off]: one Value {
    f in o.writes.Value => o.writes[f] else f in o.punches => Zero else o.call = Symlink => Zero else read[now[o], o.on, f]
}
-- Nothing that the file shows before its commit word depends on pages: they may share its fence.
pred one_fence[o: Op] {
    no content_pages[o] and no o.turns + o.clears
    all p: o.dies | state_of[now[o], p] = Unwritten or now[o].offset[p] not in o.size2
}

pred admitted[o: Op] {
    creates[o] or symlinks[o] or links[o] or removal[o] or renames[o] or exchanges[o] or whiteouts[o] or changes[o]
    no (o.fresh + o.renew) & (used_tags[now[o]] + used_tags[moments/first])
    no o.fresh & o.renew
}
pred apart[o, p: Op] {
    no (o.fresh + o.renew) & (p.fresh + p.renew)
    not finished[p, o.begins] => {
        no objects[o] & held[p, moments/first]
        no WithoutLocks => no locks[o] & locks[p]
        not (moves_directory[o] and moves_directory[p])
    }
}
fact {
    all o: Op | admitted[o]
    all o: Second | apart[o, First]
}

-- What a call does to the tree ----------------------------------------------------------------------------------------

fun removes[o: Op]: Ref -> Name -> Ref {
    o.call in Remove + Rename + Exchange + Whiteout => (o.src -> o.old -> o.on) + (o.dst -> o.name -> o.gone) else none -> none -> none
}
fun adds[o: Op]: Ref -> Name -> Ref {
    o.call in Create + Symlink => o.dst -> o.name -> o.born
    else o.call in Link + Rename => o.dst -> o.name -> o.on
    else o.call = Exchange => (o.dst -> o.name -> o.on) + (o.src -> o.old -> o.gone)
    else o.call = Whiteout => (o.dst -> o.name -> o.on) + (o.src -> o.old -> o.born)
    else none -> none -> none
}
fun tree_after[t: Ref -> Name -> Ref, o: Op]: Ref -> Name -> Ref { t - removes[o] + adds[o] }

-- The image shows the tree of the beginning and of the calls `c`, whole.
pred shows[i: Image, c: set Op] {
    i.tree = tree_after[tree_after[moments/first.tree, c & First], c & Second]
    all r: i.reach | let change = c & call.Change & on.r, birth = c & born.r, old = moments/first |
        some change => {
            i.mode[r.ino] = change.mode2 and size_of[i, r] = change.size2
            all f: change.size2 | read[i, r, f] = byte_after[change, f]
        } else some birth => {
            i.mode[r.ino] = birth.mode2 and size_of[i, r] = birth.size2
            all f: birth.size2 | read[i, r, f] = byte_after[birth, f]
        } else {
            i.mode[r.ino] = old.mode[r.ino]
            r.kind = File => (size_of[i, r] = size_of[old, r] and all f: size_of[old, r] | read[i, r, f] = read[old, r, f])
        }
}
-- Each call is there or is not: those that returned are, and the first one is if it had returned before the second one began.
pred allowed[i: Image] {
    no done and shows[i, none]
    or no Second & done and shows[i, First]
    or some Second and {
        First not in done and not finished[First, Second.begins] and shows[i, Second]
        or shows[i, Op]
    }
}
