-- What is asserted.
module rules

open transitions
open util/ordering[Moment] as moments
open util/ordering[Gen] as gens
open util/ordering[Seq] as seqs
open util/ordering[Off] as offs

-- Rule 1: nothing leads to what is not initialised. A slot may be durable before the inode that it names: it names a generation that
-- is not born, and means nothing. What it means once the birth word is there has all its words, because that word is the last.
pred rule1 {
    all o: Op {
        (some o.born and o.born in Lost.means[Slot]) => (Lost.mode[o.born.ino] = o.mode2 and size_of[Lost, o.born] = o.size2)
        (some o.room and o.room in directory_pages[Lost] and Lost.owned_by[o.room] = o.dst)
            => all s: page.(o.room) | some Lost.commit[s] => s in Op.to
    }
}
-- Rule 2: nothing leads to what is used again. An inode that is born again has no name of its last life; a page with new content is
-- its new owner's alone.
pred rule2 {
    all o: Op {
        (some o.born and Lost.birth[o.born.ino] = o.born)
            => no s: page.(directory_pages[Lost]) | Lost.commit[s].ino = o.born.ino and Lost.commit[s] != o.born
        all p: content_pages[o] | (some Settled.bytes[p].content[o][p] and p in used_pages[Lost])
            => Lost.owned_by[p] = (o.call = Symlink => o.born else o.on)
    }
}
-- Rule 3: an old name goes after the new one. What is renamed or exchanged has a name in every image.
pred rule3 {
    all o: Op | o.call in Rename + Exchange + Whiteout => {
        o.on in Lost.means[Slot] + (Op - o).on + (Op - o).gone
        o.call = Exchange => o.gone in Lost.means[Slot] + (Op - o).on + (Op - o).gone
    }
}
-- Each call has happened or not, and has if it returned.
pred atomic { allowed[Lost] and allowed[Recovered] }
-- Recovery, cut or not, keeps the tree, and leaves nothing to the next one.
pred idempotent {
    Cut.tree = Lost.tree and Recovered.tree = Lost.tree
    nothing_to_repair[Recovered]
}
-- Legal names and link counts, nothing reached twice, no pointer that could count: `sound`, again.
pred inductive {
    sound[Recovered]
    Op in done => sound[moments/last]
}
pred crash_safe { rule1 and rule2 and rule3 and atomic and idempotent and inductive }

-- There are stores whose fence has not come.
pred midway[o: Op] { some x: objects[o] | moments/last.persistence[o][x] in Dirty + InFlight }
fun last_moment: one Moment { moments/last }
