// Runs Kafka's command-line tools in one JVM, one after another, because a tool spends most of its time on the start of
// its JVM. `kafka` in cases.sh sends the requests.
//
// A request on the input consists of words that each end with a NUL: a process, the number of arguments, the class and
// the arguments. The tool uses the input, output and error streams of that process. The response on the output is one
// line with the exit status.

import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.ByteArrayOutputStream;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.common.utils.Exit;

public class Tools {
    /**
     * System.in of all tools. It reads the input of the process that requested the running tool, and opens it when a
     * tool first reads.
     */
    static class Input extends InputStream {
        String path;
        InputStream opened;

        @Override
        public int read(byte[] bytes, int from, int count) throws IOException {
            if (opened == null) opened = new FileInputStream(path);
            return opened.read(bytes, from, count);
        }

        @Override
        public int read() throws IOException {
            byte[] one = new byte[1];
            return read(one, 0, 1) < 0 ? -1 : one[0] & 0xff;
        }

        void turn(String path) throws IOException {
            if (opened != null) opened.close();
            this.path = path;
            opened = null;
        }
    }

    /**
     * System.out and System.err of all tools. A logger keeps these objects, so only their target changes. Between tools
     * they discard the output.
     */
    static class Output extends OutputStream {
        OutputStream to = OutputStream.nullOutputStream();

        @Override
        public synchronized void write(int one) throws IOException { to.write(one); }

        @Override
        public synchronized void write(byte[] bytes, int from, int count) throws IOException { to.write(bytes, from, count); }

        @Override
        public synchronized void flush() throws IOException { to.flush(); }

        synchronized void turn(OutputStream next) throws IOException {
            to.close();
            to = next;
        }
    }

    static final Input IN = new Input();
    static final Output OUT = new Output(), ERR = new Output();
    static final List<Runnable> AT_END = Collections.synchronizedList(new ArrayList<>());
    /** The exit status of the running tool, once it has ended. */
    static volatile CompletableFuture<Integer> status;

    public static void main(String[] none) throws Exception {
        InputStream asked = new BufferedInputStream(System.in);
        PrintStream answers = System.out, errors = System.err;
        Thread.currentThread().setUncaughtExceptionHandler((thread, thrown) -> thrown.printStackTrace(errors));
        System.setIn(IN);
        System.setOut(new PrintStream(OUT, true));
        System.setErr(new PrintStream(ERR, true));
        takeEnds();
        for (String process = word(asked); process != null; process = word(asked)) {
            String[] arguments = new String[Integer.parseInt(word(asked)) - 1];
            String tool = word(asked);
            for (int i = 0; i < arguments.length; i++) arguments[i] = word(asked);
            String streams = "/proc/" + process + "/fd/";
            IN.turn(streams + 0);
            OUT.turn(new BufferedOutputStream(new FileOutputStream(streams + 1, true)));
            ERR.turn(new BufferedOutputStream(new FileOutputStream(streams + 2, true)));
            int ended = run(tool, arguments);
            System.out.flush();
            System.err.flush();
            // The streams are closed before the response is sent, so that readers of these files reach their end.
            OUT.turn(OutputStream.nullOutputStream());
            ERR.turn(OutputStream.nullOutputStream());
            answers.println(ended);
        }
        System.exit(0);
    }

    /** If a tool tries to exit the process, lets it end {@link #run} instead. */
    static void takeEnds() {
        Exit.setExitProcedure(Tools::end);
        Exit.setHaltProcedure(Tools::end);
        Exit.setShutdownHookAdder((name, hook) -> AT_END.add(hook));
    }

    /** Runs a tool until it returns or exits, and then its exit procedures. Returns its exit status. */
    static int run(String tool, String[] arguments) throws Exception {
        AT_END.clear();
        status = new CompletableFuture<>();
        Thread thread = new Thread(() -> status.complete(outcome(tool, arguments)), "main");
        thread.setDaemon(true);
        thread.start();
        int ended = status.get();
        AT_END.forEach(Runnable::run);
        return ended;
    }

    static int outcome(String tool, String[] arguments) {
        try {
            Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) arguments);
            return 0;
        } catch (InvocationTargetException thrown) {
            System.err.print("Exception in thread \"main\" ");
            thrown.getCause().printStackTrace();
        } catch (ReflectiveOperationException absent) {
            absent.printStackTrace();
        }
        return 1;
    }

    /** Ends the tool. The thread that wanted to exit never continues. */
    static void end(int with, String message) {
        status.complete(with);
        while (true) LockSupport.park();
    }

    /** Reads up to the next NUL. Returns null at the end of the input. */
    static String word(InputStream asked) throws IOException {
        var word = new ByteArrayOutputStream();
        for (int next = asked.read(); next != 0; next = asked.read()) {
            if (next < 0) return null;
            word.write(next);
        }
        return word.toString(StandardCharsets.UTF_8);
    }
}
