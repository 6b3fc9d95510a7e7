// Names for what fields hold.

typedef bit<48> mac_t;
typedef bit<32> ip_t;
typedef bit<32> round_t;
typedef bit<2048> word_t;   // LANES elements of 32 bits
typedef bit<16> job_t;      // the job's place here, not the number that its members call it by
typedef bit<32> slot_t;
