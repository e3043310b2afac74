/* The raw loop in C, which is the limit of the machine: one send() of prepared bytes per delivery.
 *
 * rawsend FRAMEFILE CONNECTIONS TOPICS
 * Prints "listening PORT", accepts CONNECTIONS (connection i has topic i modulo TOPICS), prints "ready". Then for each
 * line "RATE SECONDS" on stdin: RATE bursts a second for each topic, evenly spread, and one line "bursts short_writes".
 * Ends with stdin.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static void fail(const char *what) {
    perror(what);
    exit(1);
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: rawsend FRAMEFILE CONNECTIONS TOPICS\n");
        return 2;
    }
    static char frame[1 << 20];
    FILE *file = fopen(argv[1], "rb");
    if (!file) fail("frame file");
    size_t size = fread(frame, 1, sizeof frame, file);
    fclose(file);
    int connections = atoi(argv[2]), topics = atoi(argv[3]);
    int listening = socket(AF_INET, SOCK_STREAM, 0);
    if (listening < 0) fail("socket");
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (bind(listening, (struct sockaddr *)&address, sizeof address) || listen(listening, 4096)) fail("listen");
    socklen_t length = sizeof address;
    if (getsockname(listening, (struct sockaddr *)&address, &length)) fail("getsockname");
    printf("listening %d\n", ntohs(address.sin_port));
    fflush(stdout);
    int *sockets = malloc(sizeof(int) * connections);
    for (int i = 0; i < connections; i++) {
        sockets[i] = accept4(listening, NULL, NULL, SOCK_NONBLOCK);
        if (sockets[i] < 0) fail("accept");
        int one = 1;
        setsockopt(sockets[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    }
    printf("ready\n");
    fflush(stdout);
    char line[200];
    while (fgets(line, sizeof line, stdin)) {
        double rate, seconds;
        if (sscanf(line, "%lf %lf", &rate, &seconds) != 2) return 2;
        long long rounds = (long long)(rate * seconds + 0.5), shorts = 0;
        long long bursts = (rounds > 0 ? rounds : 1) * topics;
        struct timespec start, due;
        clock_gettime(CLOCK_MONOTONIC, &start);
        for (long long burst = 0; burst < bursts; burst++) {
            long long at = (long long)(burst * 1e9 / (rate * topics)) + start.tv_nsec;
            due.tv_sec = start.tv_sec + at / 1000000000LL;
            due.tv_nsec = at % 1000000000LL;
            clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL);
            for (int i = burst % topics; i < connections; i += topics) {
                ssize_t sent = send(sockets[i], frame, size, MSG_NOSIGNAL);
                if (sent < 0 && errno != EAGAIN) fail("send");
                if (sent != (ssize_t)size) shorts++;
            }
        }
        printf("%lld %lld\n", bursts, shorts);
        fflush(stdout);
    }
    return 0;
}
