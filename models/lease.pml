/* Claim, lease, fence, release, reap, replay: one job, two workers, a watchdog, an operator.
 *
 * A worker has several slots, and a run that lost its lease still occupies one. So the same worker may
 * claim the job again beside its own zombie: here worker 1 has two slots, and worker 2 has one.
 *
 * Each `atomic` block is one committed transaction. Between two of them any other process may act,
 * which is what a paused process or a lost connection amounts to: a run that is overtaken between its
 * claim and its report is a zombie.
 *
 * Checked: a write of a worker is accepted only under the lease that it was made for; only expired
 * leases are reaped; a job that has ended stays so, except by a replay.
 *
 * Broken on purpose: TOKEN_IS_ATTEMPTS fences by the number of the attempt, NO_TOKEN by the owner
 * alone, NO_STATUS forgets the status, UNGUARDED_REAP acts on what it read before.
 */

#define CLAIMS 3        /* bounds the search */

mtype = { PENDING, RUNNING, SUCCEEDED, DEAD_LETTERED };

mtype status = PENDING;
byte owner = 0;         /* 0: nobody */
byte token = 0;
byte attempts = 0;
bool expired = false;   /* the lease has ended */

byte claims = 0;        /* which claim is the current one: what a fence has to tell apart */

#if defined(TOKEN_IS_ATTEMPTS)
#define FENCED(me, my_token, my_attempt) (status == RUNNING && owner == me && attempts == my_attempt)
#elif defined(NO_TOKEN)
#define FENCED(me, my_token, my_attempt) (status == RUNNING && owner == me)
#elif defined(NO_STATUS)
#define FENCED(me, my_token, my_attempt) (token == my_token)
#else
#define FENCED(me, my_token, my_attempt) (status == RUNNING && owner == me && token == my_token)
#endif

inline free() {
    owner = 0;
    expired = false
}

proctype Slot(byte me) {
    byte my_token, my_attempt, my_claim;
    do
    :: atomic {
        status == PENDING && claims < CLAIMS ->
        status = RUNNING; owner = me; expired = false;
        token++; attempts++; claims++;
        my_token = token; my_attempt = attempts; my_claim = claims
       };
       do
       :: atomic {      /* heartbeat */
            FENCED(me, my_token, my_attempt) && expired ->
            assert(my_claim == claims);
            expired = false
          }
       :: atomic {      /* success, reported any number of times: its answer may be lost */
            FENCED(me, my_token, my_attempt) ->
            assert(my_claim == claims && status == RUNNING);
            status = SUCCEEDED;
            free()
          }
       :: atomic {      /* snooze, release: the attempt is given back */
            FENCED(me, my_token, my_attempt) ->
            assert(my_claim == claims && status == RUNNING);
            status = PENDING; attempts--;
            free()
          }
       :: break         /* goes on with the next claim, or died */
       od
    :: break
    od
}

proctype Watchdog() {
    do
    :: atomic { status == RUNNING && !expired -> expired = true }   /* time passes */
    :: atomic { status == RUNNING && expired };     /* reads the expired leases… */
       atomic {                                     /* …and ends them in another statement */
#ifndef UNGUARDED_REAP
        if
        :: status == RUNNING && expired ->
#endif
            assert(status == RUNNING && expired);
            status = (attempts < 2 -> PENDING : DEAD_LETTERED);
            free()
#ifndef UNGUARDED_REAP
        :: else
        fi
#endif
       }
    :: break
    od
}

proctype Operator() {
    atomic {
        if
        :: status == DEAD_LETTERED || status == SUCCEEDED ->
            status = PENDING; attempts = 0
        :: true
        fi
    }
}

init {
    atomic {
        run Slot(1); run Slot(1); run Slot(2);
        run Watchdog(); run Operator()
    }
}
