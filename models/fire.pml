/* Firing a schedule: several schedulers, one cursor, no leader.
 *
 * A scheduler reads the cursor and the revision, decides, and later writes: it moves the cursor if
 * that is still where it was read, and inserts the job, in one transaction. It may die between any
 * two transactions, and its answer may be lost, so that it tries again. An operator edits the
 * schedule meanwhile.
 *
 * Checked: each occurrence that the cursor has passed has exactly one job, and a fire that was
 * decided on an older revision is not carried out.
 *
 * Broken on purpose: CURSOR_FIRST and JOB_FIRST use two transactions, NO_CURSOR_GUARD and
 * NO_REVISION_GUARD leave out a condition.
 */

#define SCHEDULERS 2
#define OCCURRENCES 3

byte cursor = 0;
byte revision = 0;
byte jobs[OCCURRENCES];

#ifdef NO_CURSOR_GUARD
#define CURSOR_IS(read) true
#else
#define CURSOR_IS(read) (cursor == read)
#endif
#ifdef NO_REVISION_GUARD
#define REVISION_IS(read) true
#else
#define REVISION_IS(read) (revision == read)
#endif

#define VALID (CURSOR_IS(read_cursor) && REVISION_IS(read_revision))

proctype Scheduler() {
    byte read_cursor, read_revision;
    do
    :: atomic { cursor < OCCURRENCES -> read_cursor = cursor; read_revision = revision };
       do
       :: true;         /* the first try, or another one after a lost answer */
#if defined(CURSOR_FIRST)
          atomic { if :: VALID -> cursor = read_cursor + 1 :: else -> break fi };
          if
          :: atomic { jobs[read_cursor]++ }
          :: break      /* dies */
          fi
#elif defined(JOB_FIRST)
          atomic { if :: VALID -> jobs[read_cursor]++ :: else -> break fi };
          if
          :: atomic { cursor = read_cursor + 1 }
          :: break
          fi
#else
          atomic {
            if
            :: VALID ->
                assert(read_revision == revision);
                cursor = read_cursor + 1;
                jobs[read_cursor]++
            :: else
            fi
          }
#endif
       :: break
       od
    :: break
    od
}

proctype Operator() {
    revision++
}

init {
    byte n = 0;
    atomic {
        do
        :: n < SCHEDULERS -> run Scheduler(); n++
        :: else -> break
        od;
        run Operator()
    };
    _nr_pr == 1;        /* all have ended or died */
    n = 0;
    do
    :: n < OCCURRENCES ->
        assert(jobs[n] == (n < cursor -> 1 : 0));
        n++
    :: else -> break
    od
}
