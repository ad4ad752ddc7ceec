/* Waking a parent: two children end while their parent begins to wait, under READ COMMITTED.
 *
 * A transaction sees what was committed when its *statement* began, and its own writes. So a child
 * ends, locks the parent's row, and in the next statement checks the others. The parent does the
 * same from its side: it becomes WAITING under its own lock and then checks.
 *
 * Checked: when everything has ended, the parent was woken exactly once.
 *
 * Broken on purpose: NO_LOCK checks without the lock. CHECK_IN_LOCKING_STATEMENT locks and checks in
 * one statement, whose snapshot is older than the lock. PARENT_DOES_NOT_CHECK relies on the children
 * alone.
 */

#define CHILDREN 2

bool ended[CHILDREN];           /* committed */
bool waiting = false;           /* committed: the parent is WAITING */
byte woken = 0;
bool locked = false;            /* the parent's row */

#define ALL_ENDED (ended[0] && ended[1])

inline lock() { atomic { !locked -> locked = true } }

proctype Child(byte me) {
    bool others, parent_waits;

    skip;                       /* UPDATE: it has ended, not committed */
#if defined(CHECK_IN_LOCKING_STATEMENT)
    others = ended[1 - me]; parent_waits = waiting;
    lock();
#else
#ifndef NO_LOCK
    lock();
#endif
    atomic { others = ended[1 - me]; parent_waits = waiting };
#endif
    atomic {                    /* COMMIT: publishes, then unlocks */
        ended[me] = true;
        if
        :: others && parent_waits -> woken++; waiting = false
        :: else
        fi;
#ifndef NO_LOCK
        locked = false
#endif
    }
}

proctype Parent() {
    bool all;

    lock();                     /* UPDATE of its own row: WAITING, not committed */
#ifdef PARENT_DOES_NOT_CHECK
    all = false;
#else
    all = ALL_ENDED;
#endif
    atomic {                    /* COMMIT */
        if
        :: all -> woken++
        :: else -> waiting = true
        fi;
        locked = false
    }
}

init {
    atomic { run Child(0); run Child(1); run Parent() };
    _nr_pr == 1;
    assert(woken == 1 && !waiting)
}
