/* Running limits: several workers claim jobs of one limit; the lease is the slot.
 *
 * A claim takes the key's lock, counts the running jobs in the next statement, claims what is free,
 * and commits, which publishes the claim and then releases the lock. Runs end without the lock: that
 * only makes room. A worker may die with its job; the watchdog ends that run.
 *
 * Checked: never more jobs run than the limit allows, and when everything has ended no slot is taken.
 *
 * Broken on purpose: COUNT_BEFORE_LOCK, NO_LOCK, UNLOCK_BEFORE_COMMIT, and COUNTED_SLOTS, which keeps
 * the number of free slots in a row of its own, changed by each claim and each end.
 */

#define LIMIT 2
#define WORKERS 3
#define RUNS 2                  /* of each worker */

byte running = 0;               /* committed rows with a lease */
byte slots = LIMIT;             /* only COUNTED_SLOTS uses it */
bool locked = false;
byte orphans = 0;               /* runs of workers that died */

inline lock() { atomic { !locked -> locked = true } }

proctype Worker() {
    byte seen, runs;
    bool claimed;
    do
    :: runs < RUNS ->
        runs++;
        claimed = false;
#if defined(COUNTED_SLOTS)
        atomic {
            if
            :: slots > 0 -> slots--; running++; claimed = true
            :: else
            fi
        };
#else
#ifdef COUNT_BEFORE_LOCK
        seen = running;
        lock();
#else
#ifndef NO_LOCK
        lock();
#endif
        seen = running;
#endif
#ifdef UNLOCK_BEFORE_COMMIT
        locked = false;
#endif
        atomic {                /* COMMIT: publishes, then unlocks */
            if
            :: seen < LIMIT -> running++; claimed = true
            :: else
            fi;
#if !defined(NO_LOCK) && !defined(UNLOCK_BEFORE_COMMIT)
            locked = false
#endif
        };
#endif
        assert(running <= LIMIT);
        if
        :: claimed ->
            if
            :: atomic {         /* ends: the lease goes, and with it the slot */
                running--;
#ifdef COUNTED_SLOTS
                slots++
#endif
               }
            :: atomic { orphans++ }; break      /* dies */
            fi
        :: else
        fi
    :: else -> break
    od
}

proctype Watchdog() {
    do
    :: atomic { orphans > 0 -> orphans--; running-- }
    :: atomic { orphans == 0 && _nr_pr == 2 -> break }      /* no worker is left */
    od
}

init {
    byte n = 0;
    atomic {
        run Watchdog();         /* first: Spin removes processes in reverse order */
        do
        :: n < WORKERS -> run Worker(); n++
        :: else -> break
        od
    };
    _nr_pr == 1;
    assert(running == 0 && slots == LIMIT)
}
